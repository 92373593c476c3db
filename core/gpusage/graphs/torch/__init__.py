"""PyTorch modules and `.pt2` programs -> `ModelGraph`."""
