"""What a job really did, on its way from the node to gpusaged."""
