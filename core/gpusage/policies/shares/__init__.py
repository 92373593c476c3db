"""What part of a GPU is enough for a job: what each part would cost, the rules that choose one, where it may land."""
