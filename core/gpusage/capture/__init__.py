"""Capture: what a training script needs of a GPU, seen by running it on this host up to its first step.

Decisions: docs/decisions/capture.md
"""

from __future__ import annotations

from pathlib import Path

ON_START = Path(__file__).parent / "on_start"
"""The first folder of PYTHONPATH in a job that shows its model."""
