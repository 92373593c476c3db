"""What a site learns from what its jobs really did: pure functions of runs; without numpy but for `figures`."""
