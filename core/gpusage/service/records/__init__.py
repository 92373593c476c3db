"""What is written into the store: decisions, and the usage of jobs."""
