"""A Slurm cluster: its nodes, their GPUs, and where these are shared."""
