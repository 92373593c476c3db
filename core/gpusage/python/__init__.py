"""The Python API: functions whose arguments are checked, and results that show themselves in a notebook."""
