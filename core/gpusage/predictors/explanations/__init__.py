"""Where the time and the memory of a prediction go, for people."""
