"""Several GPUs for one model: what each of them computes and holds, what they send each other, and how long they wait."""
