"""Training's side of the gate: holds the heavy parts of a step while a request is in flight; only with PyTorch.

A part is a module without other modules, forward and backward; it is light where half of the GPU is enough for it.
Its price is the prediction from its graph, as for a job, corrected by its time in one recorded step
(docs/decisions/gate.md).

Invariants:

1. Without a serving process no module has a hook: a step costs one reading of 64 bytes.
2. No tensor and no graph changes, so training gives the same weights, bit for bit.
3. Hooks are PyTorch's global ones, not the model's, which can be copied, saved and compiled as without them.
4. A hold ends after ``longest_s`` at the latest. In any span of time training waits for at most ``1 - share`` of the
   span plus ``longest_s``: it keeps ``share``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.hooks import RemovableHandle

import gpusage
from gpusage.devices.precisions import PURE
from gpusage.gate.busy_flags import BusyFlags
from gpusage.gate.recorder import Recorder, before_backward, event_now, is_used
from gpusage.graphs.torch.recording import SEQUENCES_FIRST_NOTE
from gpusage_hooks.errors import DeviceError, GraphError, RequestError
from gpusage_hooks.types import Precision

RECHECK_S = 50e-6
"""Pause between two readings of the flags; a hold ends so much late."""
RECORD_AGAIN_AFTER = 1000
"""Steps after which parts are timed again, because a model may have changed."""
LONGEST_PRICING_S = 5.0
"""Time limit of all predictions; the parts that remain are rated by their time alone."""
HALF_PERCENT = 50
LIGHT_PRICE = 1.25
"""Highest slowdown of a light part on half a GPU, the default of `SharingRules.maximum_slowdown`."""
SHORT_S = 100e-6
"""A hold of a shorter part gains an inference job nothing."""
LONGEST_S = 0.1
"""Longest hold: longer than most requests, shorter than a user notices."""
TRAINING_SHARE = 0.2
"""Training's part of the time, if requests never end."""


class Training:
    """Holds this process's training; one object per process."""

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
        """Check after each step whether a process serves."""
        self._begun = [optimizers.register_optimizer_step_post_hook(self._after_step)]

    def end(self) -> None:
        """Remove all hooks; nothing is held any more."""
        self._detach()
        if self._recorder is not None:
            self._recorder.stop()
        for handle in self._begun:
            handle.remove()

    def _after_step(self, *_: object) -> None:
        """Record a step if it is time; hook modules while a process serves, and else unhook them."""
        if self._recorder is not None:
            recorder, self._recorder = self._recorder, None
            recorder.stop()
            gpu = torch.cuda.get_device_name() if is_used() else None
            self.parts = price_parts(recorder, self._gpu or gpu)
            self._heavy = WeakSet(module for module, part in self.parts.items() if part.is_heavy)
            self._steps_left = RECORD_AGAIN_AFTER

        self._steps_left -= 1
        if not self._flags.is_served():
            self._detach()
        elif self._steps_left <= 0:
            # A held part would be timed with its hold.
            self._detach()
            self._recorder = Recorder()
            self._recorder.start()
        elif not self._attached:
            self._attached = [
                modules.register_module_forward_pre_hook(self._before_forward),
                modules.register_module_forward_hook(self._after_forward),
                # The update belongs to no module and so has no price: it always waits.
                optimizers.register_optimizer_step_pre_hook(self._wait_for_requests),
            ]

    def _detach(self) -> None:
        for handle in self._attached:
            handle.remove()
        self._attached = []

    def _before_forward(self, module: torch.nn.Module, _inputs: object) -> None:
        # A compiler would trace into the hook, and keep it in the graph.
        if not torch.compiler.is_compiling() and module in self._heavy:
            self._wait_for_requests()

    def _after_forward(self, module: torch.nn.Module, _inputs: object, output: object) -> None:
        if not torch.compiler.is_compiling() and module in self._heavy:
            before_backward(output, self._wait_for_requests)

    def _wait_for_requests(self, *_: object) -> None:
        """Return when no request is in flight, or at the end of the allowed time."""
        # Kernels in the GPU's queue cannot be held any more, so the host stays at most one heavy part ahead.
        # During a graph's capture nothing may be synchronized.
        if is_used() and not torch.cuda.is_current_stream_capturing():
            earlier, self._last = self._last, event_now()
            if earlier is not None:
                earlier.synchronize()
        if not self._flags.is_busy():
            return

        begun_s = time.monotonic()
        until_s = begun_s + self._patience.allowed_s(begun_s)
        while time.monotonic() < until_s and self._flags.is_busy():
            time.sleep(RECHECK_S)

        held_s = time.monotonic() - begun_s
        self._patience.spend(held_s)
        self.held_s += held_s


_OF_PROCESS: list[Training] = []


def begin_once(flags: BusyFlags, gpu: str | None) -> None:
    """Begin to hold this process's training, once: a second object would hold it twice as long."""
    if not _OF_PROCESS:
        _OF_PROCESS.append(Training(flags, gpu=gpu))
        _OF_PROCESS[0].begin()


def price_parts(recorder: Recorder, gpu: str | None) -> Mapping[torch.nn.Module, Part]:
    """Return each part that *recorder* has timed; equal parts share a prediction."""
    until_s = time.monotonic() + LONGEST_PRICING_S
    known: dict[object, float | None] = {}

    def price(module: torch.nn.Module, span_s: float) -> float | None:
        inputs = recorder.inputs.get(module, ())
        # The layers of a transformer are alike: a module's text has its sizes.
        likeness = (str(module), *(getattr(each, "shape", None) for each in inputs))
        if likeness not in known and gpu is not None and time.monotonic() < until_s:
            known[likeness] = half_price(module, inputs, span_s, gpu)
        return known.get(likeness)

    return {
        module: Part(seconds=span_s, half_price=price(module, span_s)) for module, span_s in recorder.seconds().items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a step.

    Attributes:
        seconds: Time of a forward and backward run.
        half_price: Predicted slowdown on half a GPU; ``None`` without a prediction.
    """

    seconds: float
    half_price: float | None = None

    @property
    def is_heavy(self) -> bool:
        """Return whether inference on the same GPU would wait for the part; a long part without a price is heavy."""
        return self.seconds >= SHORT_S and (self.half_price is None or self.half_price > LIGHT_PRICE)


class Patience:
    """Credit of time for holds, earned while training runs and spent while it waits (a token bucket)."""

    def __init__(self, *, longest_s: float = LONGEST_S, share: float = TRAINING_SHARE) -> None:
        self._longest_s = longest_s
        self._earned_per_s = (1 - share) / share
        self._credit_s = longest_s
        self._since_s: float | None = None

    def allowed_s(self, now_s: float) -> float:
        """Return the longest hold that may begin at *now_s*."""
        run_s = 0.0 if self._since_s is None else max(now_s - self._since_s, 0.0)
        self._credit_s = min(self._longest_s, self._credit_s + run_s * self._earned_per_s)
        self._since_s = now_s
        return self._credit_s

    def spend(self, held_s: float) -> None:
        """Count a hold of *held_s* that began at the last `allowed_s`."""
        self._credit_s -= held_s
        # The next credit is earned from the end of this hold on.
        self._since_s = (self._since_s or 0.0) + held_s


def half_price(module: torch.nn.Module, inputs: tuple[Any, ...], seconds: float, gpu: str) -> float | None:
    """Return the slowdown of a training step of *module* on half of *gpu*; ``None`` if unknown.

    Args:
        module: Part of the model.
        inputs: Its inputs; only their shapes count.
        seconds: Time of a forward and backward run, which corrects the prediction.
        gpu: Name in the catalogue, or PyTorch's name.
    """
    # Reading a module calls it. A module of the user's might change with that; PyTorch's own do not.
    sizes = [each.shape for each in inputs if isinstance(each, torch.Tensor) and each.dim()]
    if not type(module).__module__.startswith("torch.nn.") or not sizes:
        return None
    try:
        graph = gpusage.read_model(module, inputs)
        need = gpusage.predict(
            graph,
            gpu=gpu,
            share=HALF_PERCENT,
            step_time_s=seconds,
            # Behind the sequence's length, where a layer takes that first.
            batch_size=int(sizes[0][int(SEQUENCES_FIRST_NOTE in graph.notes)]),
            mode="train",
            precision=_precision(module),
            # The update is no part of a module's own time.
            optimizer="none",
        )
    except (DeviceError, GraphError, RequestError):
        return None
    return need.slowdown.value


def _precision(module: torch.nn.Module) -> Precision:
    if not torch.is_autocast_enabled("cuda"):
        weight = next(module.parameters(), None)
        return "fp32" if weight is None else PURE.get(str(weight.dtype), "fp32")
    return "bf16" if torch.get_autocast_dtype("cuda") is torch.bfloat16 else "fp16"
