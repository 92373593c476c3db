"""Seconds: kernels on GPUs, the step that they make, and how busy it keeps a GPU."""
