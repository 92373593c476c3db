"""`gpusage plan`: its two files, its work, and its page."""
