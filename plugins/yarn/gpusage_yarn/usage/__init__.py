"""What applications really did, on its way from nodes and masters to gpusaged."""
