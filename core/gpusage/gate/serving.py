"""Inference's side of the gate for unchanged code: a request is a model's outermost call."""

from __future__ import annotations

import threading

import torch
from torch.nn.modules import module as modules

from gpusage.gate.busy_flags import BusyFlags
from gpusage.gate.recorder import is_used


class Serving:
    """Reports each outermost call of a module that computes no gradients as a request."""

    def __init__(self, flags: BusyFlags) -> None:
        self._flags = flags
        self._calls = threading.local()

    def begin(self) -> None:
        """Start to report."""
        # An empty request shows training at once that this process serves.
        with self._flags.request():
            pass
        # always_call: a request ends with an exception, too.
        modules.register_module_forward_pre_hook(self._begin)
        modules.register_module_forward_hook(self._end, always_call=True)

    def _begin(self, _module: torch.nn.Module, _inputs: object) -> None:
        self._calls.depth = getattr(self._calls, "depth", 0) + 1
        # A call with gradients is training's, or a check of it.
        if self._calls.depth == 1 and not torch.is_grad_enabled():
            self._calls.is_request = True
            self._flags.enter()

    def _end(self, _module: torch.nn.Module, _inputs: object, _output: object) -> None:
        self._calls.depth -= 1
        if self._calls.depth == 0 and getattr(self._calls, "is_request", False):
            self._calls.is_request = False
            # The call has returned, but the answer is there only when the GPU has computed it.
            if is_used():
                torch.cuda.current_stream().synchronize()
            self._flags.leave()
