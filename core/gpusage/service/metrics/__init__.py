"""gpusaged's counts for Prometheus, and the endpoint that serves them."""
