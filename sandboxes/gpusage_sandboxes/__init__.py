"""What every sandbox needs, whichever workload manager runs in it: a place, ports, processes, packages."""
