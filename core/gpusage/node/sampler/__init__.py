"""What one job does on a GPU of its node, sampled while it runs; nothing of what it runs is kept."""
