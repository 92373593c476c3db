"""What gpusaged counts for Prometheus, and where it is told."""
