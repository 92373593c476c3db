"""How long the work of one step takes on a GPU: the roofline, what is learned on top of it, and the host."""
