"""Plays a PyTorch module on the ``meta`` device and records its aten operators; imported only with PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx.experimental import _config as _switches
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gpusage.graphs.torch.aten import is_known, record
from gpusage.graphs.torch.aten_call import AtenCall
from gpusage.graphs.torch.known_values import KnownValues, is_small
from gpusage.graphs.torch.own_shapes import OWN_SHAPES
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
    with torch.inference_mode(), _META, tracer, _all_chosen():
        returned = torch.func.functional_call(module, state, arguments, words)
    outputs = [tracer.tensor(leaf) for leaf in _leaves(returned)]
    return recording.run(outputs)


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
        returned = self._returned(name, func, args, words)
        outputs = tuple(self.tensor(leaf) for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor))
        record(self.recording, AtenCall(name=name, arguments=self._arguments(func, args, words), outputs=outputs))
        return returned

    def _returned(self, name: str, func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run *func* on shapes; where it asks for a value that follows from constants, give that."""
        if name in OWN_SHAPES:
            return OWN_SHAPES[name](_named(func, args, words))
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
        known: dict[str, Any] = tree_map(
            lambda leaf: self.tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, _named(func, args, words)
        )
        return known


def _named(func: Any, args: tuple[Any, ...], words: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - an operator
    """Return the arguments of *func* by the names of its schema."""
    return {**dict(zip((one.name for one in func._schema.arguments), args, strict=False)), **words}  # noqa: SLF001


@contextmanager
def _all_chosen() -> Iterator[None]:
    """Let what is chosen by values be all of it, the most that it can be; `aten` records that this was so."""
    usual = _switches.meta_nonzero_assume_all_nonzero
    _switches.meta_nonzero_assume_all_nonzero = True
    try:
        yield
    finally:
        _switches.meta_nonzero_assume_all_nonzero = usual


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
