"""`gpusage predict`: its options, its tables, its explanations and its page."""
