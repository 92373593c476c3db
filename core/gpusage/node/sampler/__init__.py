"""A job's use of a GPU, sampled on its node while it runs; nothing of its programs is kept."""
