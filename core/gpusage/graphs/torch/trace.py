"""Plays a PyTorch module on the ``meta`` device and records its aten operators; imported only with PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gpusage.graphs.torch.aten import AtenCall, is_known, record
from gpusage.graphs.torch.known_values import KnownValues, is_small
from gpusage.graphs.torch.recording import Recording, Tensor
from gpusage.graphs.two_runs import ModelRun
from gpusage_hooks.types import ElementType

_META = torch.device("meta")
_ELEMENT_TYPES: dict[torch.dtype, ElementType] = {
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int32",
    torch.int8: "int8",
    torch.uint8: "int8",
    torch.bool: "bool",
}


def play(module: torch.nn.Module, arguments: tuple[Any, ...], words: dict[str, Any]) -> ModelRun:
    """Return what *module* does when called with *arguments* and *words*, without computing any of it."""
    recording = Recording()
    tracer = _Tracer(recording)
    arguments, words = tree_map(tracer.on_meta, (arguments, words))
    for name, tensor in _named_tensors(module, arguments, words):
        recording.add_input(name, tracer.tensor(tensor))
    state = {
        name: tracer.on_meta(tensor)
        for pairs in (module.named_parameters, module.named_buffers)
        for name, tensor in pairs(remove_duplicate=False)
    }
    with torch.inference_mode(), _META, tracer:
        returned = torch.func.functional_call(module, state, arguments, words)
    outputs = [tracer.tensor(leaf) for leaf in _leaves(returned)]
    return recording.run(outputs)


def batch_size(inputs: Any) -> int | None:  # noqa: ANN401 - torch's tree of tensors
    """Return the first size of the first tensor in *inputs*, None where none has a size."""
    leaves = (leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim())
    return next((int(leaf.shape[0]) for leaf in leaves), None)


def resized(inputs: Any, batch: int, size: int) -> Any:  # noqa: ANN401 - torch's tree of tensors
    """Return *inputs* with each first size that is *batch* replaced by *size*, on the meta device."""

    def resize(leaf: Any) -> Any:  # noqa: ANN401 - a leaf may be anything
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = (size, *leaf.shape[1:]) if leaf.dim() and leaf.shape[0] == batch else leaf.shape
        return torch.empty(shape, dtype=leaf.dtype, device=_META)

    return tree_map(resize, inputs)


_ASK_FOR_VALUES = frozenset({"_local_scalar_dense", "equal"})


class _Tracer(TorchDispatchMode):
    """Moves every call to the meta device and records it."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = recording
        self.alive: dict[int, torch.Tensor] = {}
        self.values = KnownValues()
        self.moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - the operator, as torch hands it over
        types: Any,  # noqa: ANN401 - as torch hands it over
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator returns
        """Record the call of *func* unless it is better said by its parts."""
        args, words = tree_map(self.on_meta, (args, dict(kwargs or {})))
        if words.get("device") is not None:
            words["device"] = _META
        own = func.namespace in {"aten", "prims"}
        name = func.overloadpacket.__name__ if own else f"{func.namespace}.{func.overloadpacket.__name__}"
        if not is_known(name):
            with self:
                parts = func.decompose(*args, **words)
            if parts is not NotImplemented:
                return parts
        returned = self._returned(func, args, words)
        outputs = tuple(self.tensor(leaf) for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor))
        record(self.recording, AtenCall(name=name, arguments=self._arguments(func, args, words), outputs=outputs))
        return returned

    def _returned(self, func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:  # noqa: ANN401 - torch's types
        """Run *func* on shapes; where it asks for a value that follows from constants, give that."""
        if func.overloadpacket.__name__ in _ASK_FOR_VALUES:
            value = self.values.compute(func, args, words)
            return func(*args, **words) if value is None else value
        returned = func(*args, **words)
        self.values.follow(returned, self.values.compute(func, args, words) if is_small(returned) else None)
        return returned

    def on_meta(self, value: Any) -> Any:  # noqa: ANN401 - a leaf may be anything
        """Return *value*, moved to the meta device where it is a tensor; always the same for the same."""
        if isinstance(value, torch.device):
            return _META
        if not isinstance(value, torch.Tensor) or value.device == _META:
            return value
        if id(value) not in self.moved:
            meta = torch.empty(value.shape, dtype=value.dtype, device=_META)
            self.moved[id(value)] = (value, meta)
            if not isinstance(value, torch.nn.Parameter):
                self.values.known(meta, value)
        return self.moved[id(value)][1]

    def tensor(self, value: torch.Tensor) -> Tensor:
        """Return what is recorded of *value*, and keep it alive, so that its identity stays its own."""
        self.alive[id(value)] = value
        return Tensor(key=id(value), shape=tuple(value.shape), element_type=_ELEMENT_TYPES.get(value.dtype, "float"))

    def _arguments(self, func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))  # noqa: SLF001
        known: dict[str, Any] = tree_map(
            lambda leaf: self.tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, {**named, **words}
        )
        return known


def _named_tensors(
    module: torch.nn.Module, arguments: tuple[Any, ...], words: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Give each tensor that *module* is called with, by its parameter's name where there is one."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        names = []
    pairs = [*zip([*names, *("input" for _ in arguments)], arguments, strict=False), *words.items()]
    for name, value in pairs:
        leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for number, leaf in enumerate(leaves):
            yield (name if len(leaves) == 1 else f"{name}.{number}"), leaf


def _leaves(value: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - a module may return anything
    """Return the tensors of what a module returned: nested lists, mappings and objects of tensors."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__"):
            yield from (item for item in tree_leaves(vars(leaf)) if isinstance(item, torch.Tensor))
