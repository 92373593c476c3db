"""`gpusage slurm doctor`: what a host tells about an installation, and what is wrong with it."""
