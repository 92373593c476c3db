"""How much device memory a workload needs: the tensors that live at the same time, and what is added to them."""
