"""Observes the outermost calls of modules with parameters.

Invariants:

1. A call within an observed call is not observed: `torch.nn.Module.__call__` is the original one meanwhile. Only of a
   module that is taken apart the parts are observed.
2. Tensors are remembered by shape and type alone, so that nothing lives longer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

MAXIMUM_CALLS = 256
AUTOCAST = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class Wrapper(nn.Module):
    """Replaces a library's class that divides a model: it calls its one module, alone on this host."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program's model."""
        return self.module(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor without values; a leaf of a pytree."""

    sizes: tuple[int, ...]
    dtype: torch.dtype


@dataclass(slots=True, kw_only=True)
class Call:
    """Calls of a module with inputs of the same shapes.

    Attributes:
        leaves: Leaves of its arguments, with shapes for tensors.
        form: Structure of ``args`` and ``kwargs`` over the leaves.
        generated: Tokens of the prompt and new tokens, if a language model generates.
        count: Number of such calls.
        outer: The call that made it, of a module that is taken apart.
        has_backward: Whether a backward pass may have gone through it.
    """

    module: nn.Module
    leaves: list[Any]
    form: TreeSpec
    is_training: bool
    has_gradient: bool
    precision: str | None
    generated: tuple[int, int] | None = None
    count: int = 1
    outer: Call | None = None
    has_backward: bool = False

    def shapes(self) -> list[Shape]:
        """Return the shapes of its tensors, without scalars."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Shape) and leaf.sizes]

    def arguments(self, value: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return new ``args`` and ``kwargs`` with the *value* of each leaf."""
        args, kwargs = tree_unflatten([value(leaf) for leaf in self.leaves], self.form)
        return args, kwargs

    def key(self) -> tuple[Any, ...]:
        """Return a key that equal calls have in common."""
        return id(self.module), tuple(each.sizes for each in self.shapes()), self.is_training, self.has_gradient


@dataclass(slots=True)
class Observer:
    """Observes this process from `install` on.

    Attributes:
        replace: Returns the result of an observed call in the place of the called module.
        calls: The calls so far, with equal calls joined.
        apart: Calls of the modules whose parts are observed in their place, by the module's id.
    """

    replace: Callable[[Call, tuple[Any, ...], dict[str, Any]], Any]
    calls: list[Call] = field(default_factory=list)
    apart: dict[int, Call] = field(default_factory=dict)
    _outer: Call | None = None
    original: Any = nn.Module.__call__
    _observed: Any = None
    _passed: frozenset[int] = frozenset()

    def install(self) -> None:
        """Begin to observe."""
        observer = self

        # PyTorch's profiler reads the local variable `self` of this frame; the module's own words may be any.
        def call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            return observer._observe(self, args, kwargs)

        module_class: Any = nn.Module
        module_class.__call__ = self._observed = call

        def begin(own_class: Any, /, **words: Any) -> None:
            object.__init_subclass__(**words)
            forward = vars(own_class).get("forward")
            # Of a library's class the source is read, which this would hide.
            if not isinstance(forward, FunctionType) or _is_of_library(own_class):
                return

            @wraps(forward)
            def call_forward(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
                # Called by the program itself, it stands for the module.
                is_within = module_class.__call__ is not observer._observed
                is_within = is_within or id(self) in observer.apart or id(self) in observer._passed
                return (forward if is_within else module_class.__call__)(self, *args, **kwargs)

            own_class.forward = call_forward

        module_class.__init_subclass__ = classmethod(begin)

    def observe_parts(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module of *call* itself, and observe its parts in its place, now and later.

        Raises:
            Exception: The module's own, if its parts' hollow results do not suit it.
        """
        module_class: Any = nn.Module
        self.apart.setdefault(id(call.module), call)
        outer, self._outer = self._outer, call.outer or call
        module_class.__call__ = self._observed
        try:
            return self.original(call.module, *args, **kwargs)
        finally:
            self._outer = outer
            module_class.__call__ = self.original

    def _observe(self, outer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module_class: Any = nn.Module
        module = unwrapped(outer)
        # A tracer such as torch.fx puts its own call there for a while, and must see each call within; TensorBoard
        # traces a model to draw its graph. Lightning's runs another method as its forward for a while, within DDP.
        jit: Any = torch.jit
        is_other = module_class.__call__ is not self._observed or jit.is_tracing()
        is_other = is_other or ("forward" in vars(module) and hasattr(module, "training_step"))
        # Without a tensor, a layer of Keras is put into a model.
        is_of_keras = any(each.__module__.partition(".")[0] == "keras" for each in type(module).__mro__)
        is_put = is_of_keras and not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs)))
        if is_other or is_put or next(weights_of(module), None) is None:
            before, self._passed = self._passed, self._passed | {id(outer)}
            try:
                return self.original(outer, *args, **kwargs)
            finally:
                self._passed = before

        call = self._note(module, args, kwargs)
        # Calls within this one are not observed.
        module_class.__call__ = self.original
        try:
            return self.replace(call, args, kwargs)
        finally:
            if module_class.__call__ is self.original:
                module_class.__call__ = self._observed

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        # Subclasses of tensors run code of their own, also for a shape.
        leaves, form = tree_flatten((args, kwargs))
        with torch._C.DisableTorchFunction():
            leaves = [Shape(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x for x in leaves]
        call = Call(
            module=module,
            leaves=leaves,
            form=form,
            is_training=module.training,
            has_gradient=torch.is_grad_enabled(),
            precision=AUTOCAST.get(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else None,
            outer=self._outer,
        )
        key = call.key()
        for known in self.calls:
            if known.key() == key:
                known.count += 1
                return known

        if not call.has_gradient:
            with torch._C.DisableTorchFunction():
                call.generated = _generated()

        if len(self.calls) < MAXIMUM_CALLS:
            self.calls.append(call)
        return call


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside DDP, FSDP and DeepSpeed's engine; a class with more of its own is a model itself."""
    while isinstance(module, Wrapper) and len(module._modules) == 1 and not module._parameters:
        module = module.module
    return module


def _is_of_library(module_class: type) -> bool:
    file = getattr(sys.modules.get(module_class.__module__), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def parts_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield *module* and all modules within, each once."""
    known: set[int] = set()
    # Not module.modules(): the class may have something else under that name.
    waiting: list[nn.Module | None] = [module]
    while waiting:
        part = waiting.pop()
        if part is not None and id(part) not in known:
            known.add(id(part))
            yield part
            waiting += reversed(part._modules.values())


def weights_of(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the weights of *module*, each once, without a call of its ``parameters()``."""
    known: set[int] = set()
    for weight in (weight for part in parts_of(module) for weight in part._parameters.values()):
        if weight is not None and id(weight) not in known:
            known.add(id(weight))
            yield weight


def has_parts(module: nn.Module) -> bool:
    """Return whether a module within *module* has weights."""
    return any(next(weights_of(part), None) is not None for part in module.children())


def with_gradient(optimizer: Any) -> list[torch.Tensor]:
    """Return the weights that *optimizer* updates now."""
    # By their gradients, because some programs switch ``requires_grad`` off in between.
    with torch._C.DisableTorchFunction():
        return [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]


def _generated() -> tuple[int, int] | None:
    """Return tokens of the prompt and new tokens if transformers' ``generate`` is on the stack."""
    # The model itself sees one step of decoding; only this frame knows the lengths. 20 is transformers' default.
    frame = sys._getframe(3)
    while frame is not None and not (frame.f_code.co_name == "generate" and "generation_config" in frame.f_locals):
        frame = frame.f_back  # type: ignore[assignment]  # the last one has none
    if frame is None:
        return None

    settings, tokens = frame.f_locals["generation_config"], frame.f_locals.get("input_ids")
    if tokens is None:
        tokens = frame.f_locals.get("inputs_tensor")
    if settings is None or tokens is None:
        return None
    prompt = int(tokens.shape[1])
    return prompt, int(settings.max_new_tokens or max((settings.max_length or 20) - prompt, 1))
