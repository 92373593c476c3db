"""Jobs on one GPU: what they take of it together, which go together, and how they divide its threads."""
