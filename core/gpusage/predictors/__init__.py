"""What a workload needs on a GPU, predicted from its graph."""
