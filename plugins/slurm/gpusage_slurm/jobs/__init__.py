"""Jobs in slurmctld's queue: those with shares are found by their marks, checked, restored, and run again."""
