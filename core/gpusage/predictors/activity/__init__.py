"""How busy a workload keeps a GPU, and the features that say so."""
