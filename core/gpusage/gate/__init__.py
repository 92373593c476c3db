"""Training gives way to inference on one GPU: two lines of code on either side.

```python
import gpusage.gate
gpusage.gate.give_way()          # in training, once, before the first step

with gpusage.gate.request():     # in inference, around each request
    answer = model(inputs)
```

Either side may be alone, start later and end at any time. It needs PyTorch in training only. Where there can be no
gate, because another user has taken its folder's name, or nothing more can be written there, either side runs as
without it, and a warning in the log says why.

Decisions: docs/decisions/gate.md
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from gpusage.gate.busy_flags import usable_flags

__all__ = ["give_way", "request"]


def request() -> AbstractContextManager[None]:
    """Return a context manager for one request: until its end, training on the same GPU holds its heavy parts.

    Work on a GPU goes on after a call has returned, so read the answer within the block. Blocks of threads may overlap.
    """
    flags = usable_flags()
    return nullcontext() if flags is None else flags.request()


def give_way(gpu: str | None = None) -> None:
    """Let this process's training hold its heavy parts while a request is in flight on its GPU; once is enough.

    While a process serves, the first step and each 1000th are timed by parts; all others run without a recorder.

    Args:
        gpu: GPU of the predictions, by its name in the catalogue; ``None`` is PyTorch's own.

    Raises:
        ImportError: PyTorch is not installed.
    """
    from gpusage.gate.training import begin_once  # torch is an extra

    flags = usable_flags()
    if flags is not None:
        begin_once(flags, gpu)
