"""A hollow call: a module's result with zeros as values; gpusage's tracer computes only the shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from gpusage.capture.inside.cuda_on_cpu import for_a_tracer
from gpusage.capture.inside.observer import Call, weights_of
from gpusage.graphs.torch.batches import as_autocast
from gpusage.graphs.torch.module import unchanged
from gpusage.graphs.torch.trace import outputs_on_meta

LARGE_ELEMENTS = 1 << 24
"""Most elements of a result in memory; a larger one is a single zero, expanded."""
LARGE_GRADIENTS = 1 << 26
"""Most weights of a module with gradients in memory; larger gradients are expanded zeros."""
_NOT_SEEN = object()


class _Zeros(torch.autograd.Function):
    """Zeros with a gradient: backward gives each weight a gradient of zeros, for clipping or updates by hand."""

    @staticmethod
    def forward(
        ctx: Any, like: torch.Tensor, weights: list[torch.Tensor], note: Callable[[], None], *inputs: torch.Tensor
    ) -> torch.Tensor:
        """Return zeros of the shape and type of *like*; *note* is called in backward."""
        ctx.weights, ctx.inputs, ctx.note = weights, inputs, note
        return _zeros(like)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        """Give the weights their gradients."""
        ctx.note()
        is_large = sum(weight.numel() for weight in ctx.weights) > LARGE_GRADIENTS
        for weight in ctx.weights:
            if weight.grad is None and weight is not ctx.inputs[0]:
                zero = torch.zeros((), dtype=weight.dtype)
                weight.grad = zero.expand_as(weight) if is_large else torch.zeros_like(weight)
        return None, None, None, *(torch.zeros_like(each) for each in ctx.inputs)


class HollowCalls:
    """Makes hollow calls; of equal calls it computes only the first.

    Attributes:
        backward_counts: Calls with a gradient in backward, by the module's id.
    """

    def __init__(self) -> None:
        self.backward_counts: Counter[int] = Counter()
        self._outputs: dict[object, tuple[nn.Module, Any]] = {}

    def call(self, call: Call, args: Any, kwargs: Any) -> Any:
        """Return the result of *call* for these arguments, with zeros as values and with its gradient, if any."""
        module = call.module
        key = _key(module, args, kwargs)
        _, returned = self._outputs.get(key, (module, _NOT_SEEN))
        if returned is _NOT_SEEN:
            with torch._C.DisableTorchFunctionSubclass(), unchanged(module), for_a_tracer():
                returned = outputs_on_meta(module, *as_autocast(module, (args, kwargs)))
            if key and not any(hasattr(leaf, "__dict__") and _is_other(leaf) for leaf in tree_leaves(returned)):
                self._outputs[key] = module, returned  # alive, or another module may get its id
        return self._filled(call, returned, (args, kwargs))

    def _filled(self, call: Call, returned: Any, inputs: Any) -> Any:
        sources = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
        weights: list[torch.Tensor] = [
            each for each in weights_of(call.module) if each.requires_grad and each.is_floating_point()
        ]
        # Autograd calls backward only through an input with a gradient, and the smallest one costs least.
        anchors = weights or [each for each in sources if each.is_floating_point()]
        anchor = min(anchors, key=torch.Tensor.numel, default=None) if torch.is_grad_enabled() else None

        notes: list[bool] = []

        def note() -> None:
            call.has_backward = True
            if not notes:  # a call may have several results
                notes.append(True)
                self.backward_counts[id(call.module)] += 1

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or leaf.device.type != "meta":
                return leaf
            if anchor is None or not leaf.is_floating_point():
                return _zeros(leaf)
            like = torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
            return _Zeros.apply(like, weights, note, anchor, *(each for each in sources if each is not anchor))

        # Objects that are no pytrees have tensors as attributes, which are filled in place.
        filled = tree_map(fill, returned)
        for leaf in tree_leaves(filled):
            if hasattr(leaf, "__dict__") and _is_other(leaf):
                for name, value in vars(leaf).items():
                    setattr(leaf, name, tree_map(fill, value))
        return filled


def _key(module: nn.Module, args: Any, kwargs: Any) -> object:
    """Return a key that equal calls have in common; ``None`` if an argument may change from call to call."""
    leaves, form = tree_flatten((args, kwargs))
    if any(_is_other(leaf) for leaf in leaves):
        return None
    words = [(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return id(module), module.training, str(form), tuple(words)


def _is_other(leaf: Any) -> bool:
    return leaf is not None and not isinstance(leaf, torch.Tensor | bool | int | float | str | torch.dtype)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    if like.numel() <= LARGE_ELEMENTS:
        return torch.zeros(like.shape, dtype=like.dtype)
    return torch.zeros((), dtype=like.dtype).expand(like.shape)
