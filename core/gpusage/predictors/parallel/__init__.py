"""Several GPUs for one model: what each of them computes and holds, what they send, and how long they wait."""
