"""What one step computes and moves, from graph and workload, as numpy columns; no GPU is known here."""
