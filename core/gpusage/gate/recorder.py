"""A light recorder of a training step: the time of each part forward and backward; imported only with PyTorch.

It stamps the beginning and the end of a module and the beginning of its gradient, and nothing else: no shapes, no
stacks, no events to be sorted afterwards. On a GPU the stamps are CUDA events, so nothing waits before the end.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.utils.hooks import RemovableHandle

Stamp = Any
"""A time in seconds, or a CUDA event."""


@dataclass(slots=True)
class _Running:
    module: torch.nn.Module
    begun: Stamp
    is_part: bool = True


class Recorder:
    """Records parts from `start` to `stop`."""

    def __init__(self) -> None:
        self.inputs: dict[torch.nn.Module, tuple[torch.Tensor, ...]] = {}
        self._calls: dict[torch.nn.Module, int] = defaultdict(int)
        self._spans: list[tuple[torch.nn.Module, Stamp, Stamp]] = []
        self._stack: list[_Running] = []
        self._backward: tuple[torch.nn.Module, Stamp] | None = None
        self._handles: list[RemovableHandle] = []

    def start(self) -> None:
        """Begin to record."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._begin),
            hooks.register_module_forward_hook(self._end, always_call=True),
        ]

    def stop(self) -> None:
        """End the step: the backward run that is open ends here."""
        for handle in self._handles:
            handle.remove()
        self._close_backward(_stamp())

    def seconds(self) -> Mapping[torch.nn.Module, float]:
        """Return the time of a forward and backward run of each part."""
        # Events have a time only when the GPU has passed them.
        if self._spans and not isinstance(self._spans[0][1], float):
            torch.cuda.synchronize()
        total_s: dict[torch.nn.Module, float] = defaultdict(float)
        for module, begun, ended in self._spans:
            total_s[module] += _seconds(begun, ended)
        return {module: span_s / max(self._calls[module], 1) for module, span_s in total_s.items()}

    def _begin(self, module: torch.nn.Module, _inputs: object) -> None:
        # A module that calls another one is no part: its time is that of its parts.
        if self._stack:
            self._stack[-1].is_part = False
        self._stack.append(_Running(module, _stamp()))

    def _end(self, module: torch.nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        if not self._stack or self._stack[-1].module is not module:
            return  # the module was already running when the recorder began
        running = self._stack.pop()
        if not running.is_part:
            return

        self._spans.append((module, running.begun, _stamp()))
        self._calls[module] += 1
        # On "meta" a tensor has a shape and no memory.
        if module not in self.inputs:
            self.inputs[module] = tuple(
                torch.empty_like(each, device="meta") if isinstance(each, torch.Tensor) else each for each in inputs
            )
        before_backward(output, lambda: self._begin_backward(module))

    def _begin_backward(self, module: torch.nn.Module) -> None:
        # Gradients flow through one module after the other: one's beginning is the end of the one before.
        now = _stamp()
        self._close_backward(now)
        self._backward = (module, now)

    def _close_backward(self, now: Stamp) -> None:
        if self._backward is not None:
            module, begun = self._backward
            self._spans.append((module, begun, now))
            self._backward = None


def before_backward(output: object, call: Callable[[], None]) -> None:
    """Call *call* when the gradient of a module's *output* begins to flow through the module."""
    # `register_full_backward_pre_hook` would put a node of its own into the graph, which in-place modules refuse;
    # a hook of a node that is there already changes nothing.
    first = output
    while isinstance(first, (tuple, list)) and first:
        first = first[0]
    node = first.grad_fn if isinstance(first, torch.Tensor) else None
    if node is not None:
        node.register_prehook(lambda _gradients: call())


def _stamp() -> Stamp:
    return event_now(is_timed=True) if is_used() else time.perf_counter()


def _seconds(begun: Stamp, ended: Stamp) -> float:
    if isinstance(begun, float) or isinstance(ended, float):
        return ended - begun if isinstance(begun, float) and isinstance(ended, float) else 0.0
    return float(begun.elapsed_time(ended)) / 1e3


def is_used() -> bool:
    """Return whether this process computes on a GPU; the question starts nothing there."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def event_now(*, is_timed: bool = False) -> torch.cuda.Event:
    """Return an event behind the kernels that are in the queue now."""
    event = torch.cuda.Event(enable_timing=is_timed)  # type: ignore[no-untyped-call]
    event.record()
    return event
