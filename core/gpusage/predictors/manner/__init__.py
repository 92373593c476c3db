"""What a model's manner of running changes: activation checkpoints, generated tokens."""
