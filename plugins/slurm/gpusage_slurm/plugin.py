"""What gpusage's Slurm adapter answers when the core asks."""
