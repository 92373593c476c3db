"""The store of decisions and usage."""
