"""What gpusaged counts for Prometheus, and the endpoint that serves it."""
