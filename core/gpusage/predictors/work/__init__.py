"""The work of a graph: its nodes counted as numpy columns, forward and backward, and what a generated answer takes."""
