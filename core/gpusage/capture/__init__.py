"""Capture: a training script's need of a GPU, from a run on this host up to its first step.

Decisions: docs/decisions/capture.md
"""

from __future__ import annotations

from pathlib import Path

ON_START = Path(__file__).parent / "on_start"
"""First folder of PYTHONPATH in a job that shows its model."""
