"""Capture: what a training script needs of a GPU, seen by running it on this host up to its first step."""
