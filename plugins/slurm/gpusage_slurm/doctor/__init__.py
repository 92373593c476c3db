"""`gpusage slurm doctor`: what a host shows about an installation, and what is wrong with it."""
