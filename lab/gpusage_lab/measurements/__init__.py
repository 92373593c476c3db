"""The folder of public measurements: which files and columns it has, and how they are read."""
