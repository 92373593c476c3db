"""Training's side of the gate: holds the heavy parts of a step while a request is in flight; only with PyTorch.

Invariants:

1. While nobody serves, no module is hooked: a step costs one look at 64 bytes.
2. No tensor and no graph is changed, so that what is trained is the same, bit for bit.
3. Hooks are PyTorch's global ones, not the model's: it can be copied, saved and compiled as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.hooks import RemovableHandle

from gpusage.gate import cuda
from gpusage.gate.busy_flags import BusyFlags
from gpusage.gate.parts import Part
from gpusage.gate.patience import Patience
from gpusage.gate.prices import half_price, own_gpu
from gpusage.gate.recorder import Recorder, before_backward

RECHECK_S = 50e-6
RECORD_AGAIN_AFTER = 1000
"""Steps after which parts are timed anew: a model may have changed."""
LONGEST_PRICING_S = 5.0
"""Parts that are not priced by then are rated by their time alone."""


class Training:
    """Holds this process's training; one a process."""

    def __init__(self, flags: BusyFlags, *, gpu: str | None = None, patience: Patience | None = None) -> None:
        self.parts: Mapping[torch.nn.Module, Part] = {}
        self.held_s = 0.0
        self._flags = flags
        self._gpu = gpu
        self._patience = patience or Patience()
        self._heavy: WeakSet[torch.nn.Module] = WeakSet()
        self._recorder: Recorder | None = None
        self._steps_left = 0
        self._begun: list[RemovableHandle] = []
        self._attached: list[RemovableHandle] = []
        self._last: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Look after each step from now on whether somebody serves."""
        self._begun = [optimizers.register_optimizer_step_post_hook(self._after_step)]

    def end(self) -> None:
        """Hold nothing any more."""
        self._detach()
        if self._recorder is not None:
            self._recorder.stop()
        for handle in self._begun:
            handle.remove()

    def _after_step(self, *_: object) -> None:
        """Record a step if it is time, hook modules while somebody serves, and unhook them where nobody does."""
        if self._recorder is not None:
            self._set_parts(self._recorder)
        self._steps_left -= 1
        if not self._flags.is_served():
            self._detach()
        elif self._steps_left <= 0:
            self._detach()
            self._recorder = Recorder()
            self._recorder.start()
        elif not self._attached:
            self._attach()

    def _set_parts(self, recorder: Recorder) -> None:
        recorder.stop()
        self._recorder, self._steps_left = None, RECORD_AGAIN_AFTER
        self.parts = price_parts(recorder, self._gpu or own_gpu())
        self._heavy = WeakSet(module for module, part in self.parts.items() if part.is_heavy)

    def _attach(self) -> None:
        self._attached = [
            modules.register_module_forward_pre_hook(self._before_forward),
            modules.register_module_forward_hook(self._after_forward),
            optimizers.register_optimizer_step_pre_hook(self._wait_for_requests),
        ]

    def _detach(self) -> None:
        for handle in self._attached:
            handle.remove()
        self._attached = []

    def _before_forward(self, module: torch.nn.Module, _inputs: object) -> None:
        if not torch.compiler.is_compiling() and module in self._heavy:
            self._wait_for_requests()

    def _after_forward(self, module: torch.nn.Module, _inputs: object, output: object) -> None:
        if not torch.compiler.is_compiling() and module in self._heavy:
            before_backward(output, self._wait_for_requests)

    def _wait_for_requests(self, *_: object) -> None:
        """Return when no request is in flight, or when patience ends."""
        if cuda.is_used():
            self._stay_close()
        if not self._flags.is_busy():
            return
        begun_s = time.monotonic()
        until_s = begun_s + self._patience.allowed_s(begun_s)
        while time.monotonic() < until_s and self._flags.is_busy():
            time.sleep(RECHECK_S)
        held_s = time.monotonic() - begun_s
        self._patience.spend(held_s)
        self.held_s += held_s

    def _stay_close(self) -> None:
        """Let the host be at most one heavy part ahead of the GPU: what is queued there cannot be held any more."""
        if torch.cuda.is_current_stream_capturing():
            return
        earlier, self._last = self._last, cuda.event_now()
        if earlier is not None:
            earlier.synchronize()


_OF_PROCESS: list[Training] = []


def begin_once(flags: BusyFlags, gpu: str | None) -> None:
    """Begin to hold this process's training; a second one would hold it twice as long."""
    if not _OF_PROCESS:
        _OF_PROCESS.append(Training(flags, gpu=gpu))
        _OF_PROCESS[0].begin()


def price_parts(recorder: Recorder, gpu: str | None) -> Mapping[torch.nn.Module, Part]:
    """Return what is known of each part that *recorder* has seen; equal parts are priced once."""
    until_s = time.monotonic() + LONGEST_PRICING_S
    known: dict[object, float | None] = {}

    def price(module: torch.nn.Module, span_s: float) -> float | None:
        inputs = recorder.inputs.get(module, ())
        likeness = (str(module), *(getattr(each, "shape", None) for each in inputs))
        if likeness not in known and gpu is not None and time.monotonic() < until_s:
            known[likeness] = half_price(module, inputs, span_s, gpu)
        return known.get(likeness)

    return parts_of(recorder.seconds(), price)


def parts_of(
    seconds: Mapping[torch.nn.Module, float], price: Callable[[Any, float], float | None]
) -> Mapping[torch.nn.Module, Part]:
    """Return a part for each module of *seconds*."""
    return {module: Part(seconds=span_s, half_price=price(module, span_s)) for module, span_s in seconds.items()}
