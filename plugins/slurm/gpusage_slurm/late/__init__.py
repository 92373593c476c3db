"""Jobs that came without a description of their model: it is read while they wait, with their users' own rights."""
