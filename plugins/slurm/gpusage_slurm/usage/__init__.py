"""The usage of a job, on its way from the node to gpusaged."""
