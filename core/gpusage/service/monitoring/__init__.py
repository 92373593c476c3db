"""Monitors jobs after their decisions: where they run, whether they run out of memory, what they use."""
