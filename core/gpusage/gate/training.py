"""Training's side of the gate: holds the heavy parts of a step while a request is in flight; only with PyTorch.

A part is a module that calls no other, forward and backward; it is light where half of the GPU is enough for it. It is
priced as a job is: by the same prediction from its graph, corrected by the time that it took in one logged step
(docs/decisions/gate.md).

Invariants:

1. While nobody serves, no module is hooked: a step costs one look at 64 bytes.
2. No tensor and no graph is changed, so that what is trained is the same, bit for bit.
3. Hooks are PyTorch's global ones, not the model's: it can be copied, saved and compiled as ever.
4. One hold ends after ``longest_s``, whatever happens. In any span of time training is held for at most ``1 - share``
   of it, and ``longest_s`` more: it keeps ``share``.
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
RECORD_AGAIN_AFTER = 1000
"""Steps after which parts are timed anew: a model may have changed."""
LONGEST_PRICING_S = 5.0
"""Parts that are not priced by then are rated by their time alone."""
HALF_PERCENT = 50
LIGHT_PRICE = 1.25
"""What half a GPU may cost a light part; as `SharingRules.maximum_slowdown`."""
SHORT_S = 100e-6
"""To hold what ends sooner gains an inference job nothing."""
LONGEST_S = 0.1
"""Of one hold: longer than most requests take, shorter than a user notices."""
TRAINING_SHARE = 0.2
"""The part of the time that training has, if requests never end."""


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
            self._recorder.stop()
            self.parts = price_parts(self._recorder, self._gpu or own_gpu())
            self._heavy = WeakSet(module for module, part in self.parts.items() if part.is_heavy)
            self._recorder, self._steps_left = None, RECORD_AGAIN_AFTER

        self._steps_left -= 1
        if not self._flags.is_served():
            self._detach()
        elif self._steps_left <= 0:
            self._detach()
            self._recorder = Recorder()
            self._recorder.start()
        elif not self._attached:
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
        # The host is at most one heavy part ahead of the GPU: what is queued there cannot be held any more. While a
        # CUDA graph is captured, nothing may wait.
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

    return {
        module: Part(seconds=span_s, half_price=price(module, span_s)) for module, span_s in recorder.seconds().items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is known of one part of a step.

    Attributes:
        seconds: Of one forward and backward run.
        half_price: The predicted time on half a GPU over that on the whole; ``None`` where nothing predicts it.
    """

    seconds: float
    half_price: float | None = None

    @property
    def is_heavy(self) -> bool:
        """Return whether inference beside it would wait for it; a long part that nothing predicts is heavy."""
        return self.seconds >= SHORT_S and (self.half_price is None or self.half_price > LIGHT_PRICE)


class Patience:
    """Time that training may be held, earned while it runs and spent while it is held."""

    def __init__(self, *, longest_s: float = LONGEST_S, share: float = TRAINING_SHARE) -> None:
        self._longest_s = longest_s
        self._earned_per_s = (1 - share) / share
        self._credit_s = longest_s
        self._since_s: float | None = None

    def allowed_s(self, now_s: float) -> float:
        """Return how long training may be held from *now_s* on."""
        run_s = 0.0 if self._since_s is None else max(now_s - self._since_s, 0.0)
        self._credit_s = min(self._longest_s, self._credit_s + run_s * self._earned_per_s)
        self._since_s = now_s
        return self._credit_s

    def spend(self, held_s: float) -> None:
        """Count a hold of *held_s* that began at the last `allowed_s`."""
        self._credit_s -= held_s
        self._since_s = (self._since_s or 0.0) + held_s


def own_gpu() -> str | None:
    """Return the name of PyTorch's GPU, ``None`` where it uses none."""
    return torch.cuda.get_device_name() if is_used() else None


def half_price(module: torch.nn.Module, inputs: tuple[Any, ...], seconds: float, gpu: str) -> float | None:
    """Return the time of a training step of *module* on half of *gpu* over that on the whole; ``None`` if unknown.

    Only modules of PyTorch itself are asked, for others might change when they are played.

    Args:
        module: A part of the model.
        inputs: What it is called with; only the shapes count.
        seconds: What one run took, forward and backward, which corrects the prediction.
        gpu: By its name of the catalogue, or PyTorch's.
    """
    sizes = [each.shape for each in inputs if isinstance(each, torch.Tensor) and each.dim()]

    # A module of the user's may change when it is called again.
    if not type(module).__module__.startswith("torch.nn.") or not sizes:
        return None

    try:
        graph = gpusage.read_model(module, inputs)
        need = gpusage.predict(
            graph,
            gpu=gpu,
            share=HALF_PERCENT,
            step_time_s=seconds,
            # Recurrent layers of PyTorch have the sequence's length first.
            batch_size=int(sizes[0][int(SEQUENCES_FIRST_NOTE in graph.notes)]),
            mode="train",
            precision=_precision(module),
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
