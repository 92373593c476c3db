"""`gpusage slurm install`: the changes in slurm.conf, in the site's Lua scripts and on the nodes."""
