"""A plan of `gpusage plan`, carried out by Slurm's power saving: nodes that it does not use are suspended."""
