"""`gpusage slurm doctor`: the state of an installation on a host, and its faults."""
