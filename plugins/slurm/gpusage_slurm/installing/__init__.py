"""What `gpusage slurm install` changes: slurm.conf, the block in the site's scripts, and the nodes' side."""
