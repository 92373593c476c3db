"""The child's side of capture: runs the user's program, with the user's Python and PyTorch."""
