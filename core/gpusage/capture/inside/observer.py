"""Observes the outermost calls of modules with parameters, and the updates of optimizers.

Invariants:

1. A call within an observed call is not observed: `torch.nn.Module.__call__` is the original one meanwhile.
2. Tensors are remembered by shape and type alone, so that nothing lives longer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

MAXIMUM_CALLS = 64
_WRAPPERS = {
    **dict.fromkeys(("DistributedDataParallel", "DataParallel"), "ddp"),
    "FullyShardedDataParallel": "fsdp",
    "DeepSpeedEngine": "zero",
}
"""How the model is divided, by the class that wraps it; for DeepSpeed its stage is added."""
AUTOCAST = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor without values; pytree takes it for a leaf."""

    sizes: tuple[int, ...]
    dtype: torch.dtype


@dataclass(slots=True, kw_only=True)
class Call:
    """Calls of one module with inputs of the same shapes.

    Attributes:
        reference: Returns the module, ``None`` if the program has given it up.
        generated: Tokens of the prompt and new ones, where a language model is called to generate.
        count: How many such calls there were.
    """

    reference: Callable[[], nn.Module | None]
    args: Any
    kwargs: Any
    is_training: bool
    has_gradient: bool
    precision: str | None
    generated: tuple[int, int] | None = None
    count: int = 1

    @property
    def module(self) -> nn.Module:
        """Return the module, which must be there."""
        module = self.reference()
        if module is None:
            message = "the program has given up this module"
            raise ReferenceError(message)
        return module

    def shapes(self) -> list[Shape]:
        """Return the shapes of its tensors, scalars left out."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Shape) and leaf.sizes]

    def key(self) -> tuple[Any, ...]:
        """Return what equal calls have in common."""
        return id(self.reference()), tuple(each.sizes for each in self.shapes()), self.is_training, self.has_gradient


@dataclass(slots=True)
class Observer:
    """Observes this process from `install` on.

    Attributes:
        replace: Makes the result of an observed call, given the module that the program called, in its place.
        calls: The calls so far, equal ones as one.
        is_compiled: Whether `torch.compile` wraps one of the modules.
        strategy: How several GPUs divide the model, by what wraps it; ``None`` if nothing does.
        precision: That of DeepSpeed, which casts the weights itself.
        is_in_parts: Whether this process has a part of a model that does not show the whole.
    """

    replace: Callable[[Call, nn.Module, tuple[Any, ...], dict[str, Any]], Any]
    calls: list[Call] = field(default_factory=list)
    is_compiled: bool = False
    strategy: str | None = None
    precision: str | None = None
    is_in_parts: bool = False
    original: Any = nn.Module.__call__
    _observed: Any = None

    def install(self) -> None:
        """Begin to observe."""
        observer = self

        # PyTorch's profiler reads the local variable `self` of this frame; the module's own words may be any.
        def call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            return observer._observe(self, args, kwargs)

        module_class: Any = nn.Module
        module_class.__call__ = self._observed = call

    def uninstall(self) -> None:
        """Stop observing; a replacement of the call that came after ours stays."""
        module_class: Any = nn.Module
        if module_class.__call__ is self._observed:
            module_class.__call__ = self.original
        self._observed = None

    def note(self, outer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Note a call of *outer*; ``None`` if it is not one of a model, or draws its graph, as TensorBoard does."""
        jit: Any = torch.jit
        if jit.is_tracing():
            return None
        module = unwrapped(outer)
        if _has_other_forward(module) or next(module.parameters(), None) is None:
            return None
        if is_of_keras(module) and not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs))):
            return None  # a layer that is put into a model
        if module is not outer:
            self._note_wrappers(outer)
        return self._note(module, args, kwargs)

    def _observe(self, outer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module_class: Any = nn.Module
        # A tracer such as torch.fx puts its own call there for a while, and must see each call within.
        if module_class.__call__ is not self._observed:
            return self.original(outer, *args, **kwargs)
        call = self.note(outer, args, kwargs)
        if call is None:
            return self.original(outer, *args, **kwargs)
        module_class.__call__ = self.original
        try:
            return self.replace(call, outer, args, kwargs)
        finally:
            if self._observed is not None and module_class.__call__ is self.original:
                module_class.__call__ = self._observed

    def _note_wrappers(self, module: Any) -> None:
        while (inner := _wrapped(module)) is not None:
            self.is_compiled = self.is_compiled or "_orig_mod" in module._modules
            self.strategy = _WRAPPERS.get(type(module).__name__, self.strategy)
            if self.strategy == "zero":
                self.strategy = f"zero{module.zero_optimization_stage()}".replace("zero0", "ddp")
                casts = {"bf16": module.bfloat16_enabled(), "fp16": module.fp16_enabled()}
                self.precision = next((word for word, is_on in casts.items() if is_on), None)
            self.is_in_parts = self.is_in_parts or is_in_parts(module)
            module = inner

    def _refer_to(self, module: nn.Module) -> Callable[[], nn.Module | None]:
        """Return what gives *module* back later: here it stays alive until then."""
        return lambda: module

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call = Call(
            reference=self._refer_to(module),
            args=_shapes(args),
            kwargs=_shapes(kwargs),
            is_training=module.training,
            has_gradient=torch.is_grad_enabled(),
            precision=_autocast_precision(),
        )
        key = call.key()
        for known in self.calls:
            if known.key() == key:
                known.count += 1
                return known
        if not call.has_gradient:
            call.generated = _generated()
        if len(self.calls) < MAXIMUM_CALLS:
            self.calls.append(call)
        return call


def unwrapped(module: Any) -> nn.Module:
    """Return the module inside torch.compile, DDP and FSDP."""
    while (inner := _wrapped(module)) is not None:
        module = inner
    outermost: nn.Module = module
    return outermost


def _wrapped(module: Any) -> nn.Module | None:
    """Return what *module* wraps; ``None`` for a module of the user's, which may have such a name and more inside."""
    is_bare = len(module._modules) == 1 and not module._parameters
    name = "_orig_mod" if "_orig_mod" in module._modules else "module" if type(module).__name__ in _WRAPPERS else ""
    return getattr(module, name, None) if is_bare and name else None


def with_gradient(optimizer: Any) -> list[torch.Tensor]:
    """Return the weights that *optimizer* updates now: some programs switch ``requires_grad`` off in between."""
    return [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]


def is_in_parts(module: nn.Module) -> bool:
    """Return whether this process has a part of *module* that does not show the whole."""
    return type(module).__name__ == "FullyShardedDataParallel"


def is_of_keras(module: nn.Module) -> bool:
    """Return whether *module* is one of Keras, whose optimizers and training loop are its own."""
    return any(each.__module__.partition(".")[0] == "keras" for each in type(module).__mro__)


def _has_other_forward(module: nn.Module) -> bool:
    """Return whether *module* passes for another one for a while, as Lightning's does within DDP."""
    return "forward" in vars(module) and hasattr(module, "training_step")


def _shapes(tree: Any) -> Any:
    return tree_map(lambda x: Shape(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x, tree)


def _autocast_precision() -> str | None:
    return AUTOCAST.get(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else None


def _generated() -> tuple[int, int] | None:
    """Return tokens of the prompt and new ones if transformers' ``generate`` is on the stack."""
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
