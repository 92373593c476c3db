"""How each of the example models is run where a bench submits them all: 96 submissions of 16 models."""

from __future__ import annotations

from gpusage_hooks.types import Mode

RUNS: tuple[tuple[Mode, int], ...] = (
    ("infer", 1),
    ("infer", 8),
    ("infer", 32),
    ("train", 8),
    ("train", 32),
    ("train", 64),
)
