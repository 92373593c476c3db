"""`gpusage card` and `gpusage job-card`: descriptions of models, made, kept and read."""
