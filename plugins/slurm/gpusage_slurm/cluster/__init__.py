"""What a Slurm cluster has, and what of it can be shared."""
