"""Jobs that slurmctld has: found by their marks, judged, given back what they asked for, and run again."""
