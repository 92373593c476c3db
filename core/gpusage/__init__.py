"""Predicts what a deep-learning job needs from a GPU, and decides what it should ask for."""
