"""Whether an installation works."""
