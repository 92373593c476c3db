"""`gpusage colocate`: what jobs on one GPU do to each other, and the best partner of one."""
