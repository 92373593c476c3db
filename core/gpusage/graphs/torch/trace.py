"""Runs a PyTorch module on the ``meta`` device and records its aten operators; imported only with PyTorch.

Tensors on that device have no values. A few operators need some: `SHAPE_FUNCTIONS` replaces those whose meta kernels
want values or take minutes, and `_VALUES` are those that follow from constants,
because some models make a mask or positions from a range and branch on them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any

import torch
from torch.fx.experimental import _config as _switches
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gpusage.graphs.batch_sizes import ModelRun
from gpusage.graphs.torch.aten import NAMES, direction_count, is_known, record
from gpusage.graphs.torch.libraries import replaced
from gpusage.graphs.torch.recording import AtenCall, Recording, Tensor
from gpusage_hooks.types import ElementType

Arguments = Mapping[str, Any]
_CPU = torch.device("cpu")


def _recurrence(arguments: Arguments) -> tuple[torch.Tensor, ...]:
    """Return a recurrent layer's outputs and last states; PyTorch's meta kernel loops over the time steps."""
    source = arguments["data" if "data" in arguments else "input"]
    states = arguments["hx"] if isinstance(arguments["hx"], (list, tuple)) else (arguments["hx"],)
    output = source.new_empty((*source.shape[:-1], direction_count(arguments) * states[0].shape[-1]))
    return (output, *(state.new_empty(state.shape) for state in states))


def _packed(arguments: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all steps of all samples in one row, and the number of samples in each step.

    All sequences get the maximum length: their lengths are values. PyTorch requires the second tensor on the CPU.
    """
    source = arguments["input"]
    steps, samples = source.shape[1::-1] if arguments["batch_first"] else source.shape[:2]
    row = source.new_empty((steps * samples, *source.shape[2:]))
    return row, torch.full((steps,), samples, dtype=torch.int64, device=_CPU)


def _padded(arguments: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequences in a packed row, and their lengths."""
    row, steps = arguments["data"], arguments["batch_sizes"].shape[0]
    samples = row.shape[0] // steps
    shape = (samples, steps) if arguments["batch_first"] else (steps, samples)
    return row.new_empty((*shape, *row.shape[1:])), torch.full((samples,), steps, dtype=torch.int64, device=_CPU)


SHAPE_FUNCTIONS: Mapping[str, Callable[[Arguments], Any]] = {
    **dict.fromkeys(NAMES, _recurrence),
    "_pack_padded_sequence": _packed,
    "_pad_packed_sequence": _padded,
    # As many indices as there are boxes: how many overlap depends on values.
    "torchvision.nms": lambda arguments: arguments["dets"].new_empty(len(arguments["dets"]), dtype=torch.int64),
}
"""By the operator's name in `gpusage.graphs.torch.aten`. Arguments have the names of the operator's schema."""


MAXIMUM_ELEMENTS = 2**21
"""Of a tensor with known values: twice a mask of 1024 by 1024 tokens."""
# The attribute of a meta tensor that has its values on the CPU: a module may keep a mask of one run for the next.
_VALUES = "gpusage_values"


def _values_from_constants(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:  # torch's types
    """Return *func* of the values of its arguments, ``None`` if one depends on a weight or an input."""
    if any(isinstance(leaf, torch.Tensor) and not hasattr(leaf, _VALUES) for leaf in tree_leaves((args, keywords))):
        return None

    def real(leaf: Any) -> Any:  # an argument may be anything
        if isinstance(leaf, torch.Tensor):
            return getattr(leaf, _VALUES)
        return _CPU if isinstance(leaf, torch.device) else leaf

    try:
        return func(*tree_map(real, args), **tree_map(real, keywords))
    except Exception:  # without the values the shapes are still right
        return None


def _keep_values(returned: Any, real: Any) -> None:  # whatever an operator returns
    """Keep *real* as the values of *returned*; forget its values if *real* is ``None``, or large."""
    metas = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
    values = [leaf for leaf in tree_leaves(real) if isinstance(leaf, torch.Tensor)]
    for meta, value in zip_longest(metas, values[: len(metas)]):
        vars(meta).pop(_VALUES, None)
        if value is not None and (value.shape, value.device) == (meta.shape, _CPU) and meta.numel() <= MAXIMUM_ELEMENTS:
            setattr(meta, _VALUES, value)


_META = torch.device("meta")
_DETECTORS = ("ops.boxes", "models.detection.roi_heads", "models.detection.transform")
_ELEMENT_TYPES: dict[torch.dtype, ElementType] = {
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int32",
    torch.int8: "int8",
    torch.uint8: "int8",
    torch.bool: "bool",
}


def run_on_meta(module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ModelRun:
    """Return the run of *module* on *arguments* and *keywords*, on shapes alone."""
    recording = Recording()
    tracer = _Tracer(recording)
    arguments, keywords = tree_map(tracer.on_meta, (arguments, keywords))
    for name, tensor in _named_tensors(module, arguments, keywords):
        recording.add_input(name, tracer.tensor(tensor))
    returned = _call(tracer, module, arguments, keywords)
    outputs = [tracer.tensor(leaf) for leaf in _leaves(returned)]

    return recording.run(outputs)


def outputs_on_meta(module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return what *module* returns for *arguments* and *keywords*, on shapes alone."""
    tracer = _Tracer(Recording())
    arguments, keywords = tree_map(tracer.on_meta, (arguments, keywords))
    return _call(tracer, module, arguments, keywords)


# transformers' method that reads tokens, only to warn.
_WARNS_OF_PADDING = "warn_if_padding_and_no_attention_mask"


def _call(tracer: _Tracer, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    # functional_call runs the module on these tensors and leaves its own weights alone.
    state = {
        name: tracer.on_meta(tensor)
        for pairs in (module.named_parameters, module.named_buffers)
        for name, tensor in pairs(remove_duplicate=False)
    }
    for part in module.modules():
        if hasattr(part, _WARNS_OF_PADDING):
            vars(part)[_WARNS_OF_PADDING] = lambda *_: None

    with torch.inference_mode(), _META, _Constants(), tracer, _all_elements_selected(), _autocast_of_any_device():
        return torch.func.functional_call(module, state, arguments, keywords)


class _Constants(TorchFunctionMode):
    """Makes ``torch.tensor`` of numbers on the CPU, from where a call moves it with its values: models read them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's own
        """Call *func*."""
        return func(*args, **{**(kwargs or {}), **({"device": _CPU} if func is torch.tensor else {})})


_READ_VALUES = frozenset({"_local_scalar_dense", "equal"})


class _Tracer(TorchDispatchMode):
    """Moves every call to the meta device and records it."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = recording
        self.alive: dict[int, torch.Tensor] = {}
        self.moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,  # the operator, as torch hands it over
        types: Any,  # as torch hands it over
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # whatever the operator returns
        """Record the call of *func*; if no rule describes it, record the operators that it decomposes into."""
        args, keywords = tree_map(self.on_meta, (args, dict(kwargs or {})))
        if keywords.get("device") is not None:
            keywords["device"] = _META
        # prims are what aten decomposes into; other libraries keep their prefix.
        own = func.namespace in {"aten", "prims"}
        name = func.overloadpacket.__name__ if own else f"{func.namespace}.{func.overloadpacket.__name__}"
        # An operator without a rule is often made of some that have one.
        if not is_known(name):
            with self:
                parts = func.decompose(*args, **keywords)
            if parts is not NotImplemented:
                return parts

        returned = self._returned(name, func, args, keywords)
        outputs = tuple(self.tensor(leaf) for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor))
        arguments: dict[str, Any] = tree_map(
            lambda leaf: self.tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            _arguments_by_name(func, args, keywords),
        )
        record(self.recording, AtenCall(name=name, arguments=arguments, outputs=outputs))
        return returned

    def _returned(self, name: str, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return *func* on shapes; if it reads a value that follows from constants, that value."""
        if name in SHAPE_FUNCTIONS:
            return SHAPE_FUNCTIONS[name](_arguments_by_name(func, args, keywords))
        if func.overloadpacket.__name__ in _READ_VALUES:
            value = _values_from_constants(func, args, keywords)
            return func(*args, **keywords) if value is None else value

        returned = func(*args, **keywords)
        is_small = all(
            leaf.numel() <= MAXIMUM_ELEMENTS for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)
        )
        _keep_values(returned, _values_from_constants(func, args, keywords) if is_small else None)
        return returned

    def on_meta(self, value: Any) -> Any:  # a leaf may be anything
        """Return *value*, a tensor on the meta device; the same one for the same tensor."""
        if isinstance(value, torch.device):
            return _META
        if not isinstance(value, torch.Tensor) or value.device == _META:
            return value

        if id(value) not in self.moved:
            # A view of it must be of its kind: in inference mode PyTorch views no other tensor as one of that mode.
            with torch.inference_mode(value.is_inference()):
                meta = torch.empty(value.shape, dtype=value.dtype, device=_META)
            self.moved[id(value)] = (value, meta)
            # A copy, because the module may write to its buffers.
            if value.device == _CPU and value.numel() <= MAXIMUM_ELEMENTS and not isinstance(value, torch.nn.Parameter):
                _keep_values(meta, value.clone())
        return self.moved[id(value)][1]

    def tensor(self, value: torch.Tensor) -> Tensor:
        """Return *value* as recordings have it, and keep it alive: ``id`` may be reused after its end."""
        self.alive[id(value)] = value
        return Tensor(key=id(value), shape=tuple(value.shape), element_type=_ELEMENT_TYPES.get(value.dtype, "float"))


def _arguments_by_name(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:  # an operator
    """Return the arguments of *func* by the names of its schema."""
    schema = func._schema  # noqa: SLF001 - an operator names no public way to it
    return {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **keywords}


def _all_elements_selected() -> AbstractContextManager[None]:
    """Let ``nonzero`` on the meta device return all elements, the most possible; `aten` records it as unknown.

    Of torchvision's detectors, boxes of all classes are compared at once: its loop over classes asks which of them
    there are. Masks and keypoints stay as their layers return them, as in training: an answer draws them as large as
    boxes are.
    """
    boxes, heads, pictures = (sys.modules.get(f"torchvision.{name}") for name in _DETECTORS)
    places = [
        (_switches, "meta_nonzero_assume_all_nonzero", True),
        (boxes, "_batched_nms_vanilla", getattr(boxes, "_batched_nms_coordinate_trick", None)),
        (heads, "heatmaps_to_keypoints", lambda maps, _: (maps[:, :, :3, 0], maps[:, :, 0, 0])),
        (pictures, "paste_masks_in_image", lambda masks, *_: masks),
    ]
    return replaced(*(place for place in places if hasattr(*place[:2])))


def _autocast_of_any_device() -> AbstractContextManager[None]:
    """Let a model ask for autocast on the device of its inputs: PyTorch has none for the meta device."""

    def on_another(function: Callable[..., Any], device: str) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            return function(*tree_map(mapped, args), **tree_map(mapped, keywords))

        def mapped(value: Any) -> Any:
            return device if isinstance(value, str) and value == "meta" else value

        return call

    queries: Any = [(torch, name, "cuda") for name in ("is_autocast_enabled", "get_autocast_dtype")]
    places = [*queries, (torch.autocast, "__init__", "cpu")]
    return replaced(*((owner, name, on_another(getattr(owner, name), device)) for owner, name, device in places))


def _named_tensors(
    module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor in the arguments with the name of its parameter of ``forward``."""
    try:
        # A forward that is written in C has no signature.
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        names = []

    pairs = [*zip([*names, *("input" for _ in arguments)], arguments, strict=False), *keywords.items()]
    for name, value in pairs:
        leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for number, leaf in enumerate(leaves):
            yield (name if len(leaves) == 1 else f"{name}.{number}"), leaf


def _leaves(value: Any) -> Iterator[torch.Tensor]:  # a module may return anything
    """Yield the tensors in *value*: nested lists, mappings and objects of tensors."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__"):
            yield from (item for item in tree_leaves(vars(leaf)) if isinstance(item, torch.Tensor))
