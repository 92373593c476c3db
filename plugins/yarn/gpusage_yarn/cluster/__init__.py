"""A YARN cluster as its ResourceManager and its nodes describe it."""
