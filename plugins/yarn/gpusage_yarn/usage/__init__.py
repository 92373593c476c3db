"""The usage of applications, on its way from nodes and masters to gpusaged."""
