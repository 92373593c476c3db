"""The little that the gate asks of PyTorch's GPU; imported only with PyTorch."""

from __future__ import annotations

import torch


def is_used() -> bool:
    """Return whether this process computes on a GPU; a look that starts nothing there."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def event_now(*, is_timed: bool = False) -> torch.cuda.Event:
    """Return an event at the end of what is queued now."""
    event = torch.cuda.Event(enable_timing=is_timed)  # type: ignore[no-untyped-call]
    event.record()
    return event
