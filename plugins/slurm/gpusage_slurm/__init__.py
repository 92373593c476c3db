"""gpusage for Slurm."""
