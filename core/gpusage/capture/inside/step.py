"""An observation -> a job's keys, each with its mark, and the graph of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from gpusage.capture.inside.light import LeftOut
from gpusage.capture.inside.observer import AUTOCAST, Call, Shape, parts_of, weights_of
from gpusage.devices.precisions import PURE
from gpusage.graphs.torch.batches import Batch, sample_count
from gpusage.graphs.torch.libraries import replaced
from gpusage.graphs.torch.module import CHECKPOINTING, graph_from_module, has_channels_last
from gpusage.graphs.torch.recording import SEQUENCES_FIRST_NOTE
from gpusage_hooks.types import ModelGraph

SEEN, MAPPED, GUESSED = "seen", "mapped", "guessed"
"""Marks of a key: the program's own value; the nearest word that gpusage knows; or the usual value."""
Key = tuple[str, str]
"""The value of a job's key, and its mark."""
# The word for each class of optimizers, by its count of numbers for each weight.
_OPTIMIZERS: Mapping[str, str] = {
    **{name: name.lower() for name in ("SGD", "Adam", "AdamW", "Adafactor", "Adam8bit", "AdamW8bit", "Muon")},
    **dict.fromkeys(("NAdam", "Nadam", "RAdam", "Adadelta", "Adamax", "Lamb"), "adam"),
    **dict.fromkeys(("RMSprop", "Adagrad", "Lion"), "momentum"),
    **dict.fromkeys(("FusedAdam", "DeepSpeedCPUAdam"), "adamw"),
}
# A generating model's cache from call to call: a second run of the call would fill it twice.
_CACHES = frozenset({"past_key_values", "cache_position", "use_cache"})
# Part of the weights: Keras counts moving averages as untrained weights.
_ALMOST_ALL = 0.995
_MOST_INFERENCE_CALLS = 8
MAXIMUM_FAILURE_CHARACTERS = 300


@dataclass(slots=True, kw_only=True)
class Observation:
    """Observations of a run of a program.

    Attributes:
        calls: Outermost calls.
        optimizers: Optimizers that updated weights; without any, all optimizers.
        accumulate: Passes for one update; ``None`` without an update.
        is_full: Whether the program made a full cycle, from one update to the next.
    """

    calls: Sequence[Call]
    optimizers: Sequence[Any] = ()
    accumulate: int | None = None
    is_full: bool = False
    left_out: LeftOut = field(default_factory=LeftOut)


class _Step(nn.Module):
    """All modules of a step, called in turn, as a single module."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.parts = nn.ModuleList({id(call.module): call.module for call in calls}.values())
        self.modules_in_turn = [call.module for call in calls]

    def forward(self, *inputs: Any) -> Any:
        pairs = zip(self.modules_in_turn, inputs, strict=True)
        return [module(*args, **kwargs) for module, (args, kwargs) in pairs]


def step_calls(observation: Observation) -> tuple[bool, list[Call]]:
    """Return whether the program trains, and the calls of a step, the main call first.

    In training these are the calls with a gradient of modules that an optimizer updates, in training mode if some are,
    and the calls of other modules that go along with them, as a teacher's; in inference the most frequent calls.
    """
    # Without an optimizer a call with gradients is training by hand.
    calls = list(observation.calls)
    by_hand = [call for call in calls if call.has_gradient and call.is_training]
    if not observation.optimizers:
        if by_hand:
            return True, by_hand
        # Without an update and a gradient the program infers: what it calls most is its model.
        most = max(calls, key=lambda call: call.count)
        if most.outer is not None:
            return False, [call for call in calls if call.outer is not None]
        return False, [call for call in calls if call.count == most.count][:_MOST_INFERENCE_CALLS]

    # Weights that no optimizer updates are a teacher's, or frozen.
    trained = {id(p) for each in observation.optimizers for group in each.param_groups for p in group["params"]}
    main = [c for c in calls if c.has_gradient and any(id(p) in trained for p in weights_of(c.module))]
    # An evaluation, and a sample of images, may forget to switch gradients off.
    main = [call for call in main if call.is_training] or main
    main = [call for call in main if call.has_backward] or main
    parts = {id(part) for call in main for part in parts_of(call.module)}
    others = [c for c in calls if id(c.module) not in parts and (c.has_gradient or not c.is_training)]
    return True, [*main, *others] if main else calls


class _Products(TorchDispatchMode):
    """Counts what matrix products and convolutions write, by its type."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call *func*, or what it is composed of."""
        if func.overloadpacket not in flop_registry:
            with self:
                parts = func.decompose(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {})) if parts is NotImplemented else parts
        written = func(*args, **(kwargs or {}))
        first = next(leaf for leaf in tree_leaves(written) if isinstance(leaf, torch.Tensor))
        self.counts[first.dtype] += first.numel()
        return written


@contextmanager
def _precisions_inside() -> Iterator[list[str]]:
    """Collect the precisions to which forward passes cast, first by autocast, as accelerate's, then by themselves."""
    precisions: list[str] = []
    autocast: Any = torch.autocast
    enter = autocast.__enter__

    def enter_noted(self: Any) -> Any:
        if self._enabled and self.fast_dtype in AUTOCAST:
            precisions.append(AUTOCAST[self.fast_dtype])
        return enter(self)

    with replaced((autocast, "__enter__", enter_noted)), _Products() as products:  # on shapes autocast changes nothing
        yield precisions
    precisions += [AUTOCAST[each] for each, _ in products.counts.most_common(1) if each in AUTOCAST]


def modules_of(calls: Sequence[Call]) -> list[nn.Module]:
    """Return the modules that the program called for *calls*, each once."""
    modules = [(call.outer or call).module for call in calls]
    return list({id(module): module for module in modules}.values())


def weight_count(modules: Sequence[nn.Module], *, only_trained: bool = False) -> int:
    """Return the number of weights, each counted once."""
    weights = {id(weight): weight for module in modules for weight in weights_of(module)}
    return sum(each.numel() for each in weights.values() if each.requires_grad or not only_trained)


def record_of_step(observation: Observation) -> tuple[dict[str, Any], ModelGraph | None]:
    """Return the record of the observed step, and its graph; ``None`` if the graph cannot be read."""
    trains, calls = step_calls(observation)
    graph, failure = None, ""
    with _precisions_inside() as precisions:
        try:
            graph = _graph_of(calls)
        except Exception as error:  # the keys are worth recording without a graph
            failure = str(error)[:MAXIMUM_FAILURE_CHARACTERS]

    mark = GUESSED if observation.accumulate is None else SEEN
    keys = {"batch": _batch(calls[0], graph), "mode": ("train" if trains else "infer", mark)}
    keys["precision"] = _precision(calls, next(iter(precisions), None), observation.left_out.precision)
    if trains:
        keys |= _training(observation, calls)
    elif calls[0].generated:
        prompt, new = calls[0].generated
        keys["generate"] = (f"{prompt}+{new}", SEEN)
    modules = modules_of(calls)
    if observation.left_out.is_compiled:
        keys["compile"] = ("on", SEEN)
    if any(map(has_channels_last, modules)):
        keys["layout"] = ("channels_last", SEEN)

    named = [[type(module).__name__, weight_count([module])] for module in modules]
    return {"keys": keys, "modules": named, "graph_failure": failure}, graph


def why_unread(call: Call) -> str:
    """Return why *call* has no graph, or nothing: it may know values of its inputs, which a graph does not."""
    try:
        _graph_of([call])
    except Exception as error:  # whatever a module of the program raises on shapes
        return str(error.__cause__ or error)[:MAXIMUM_FAILURE_CHARACTERS]
    return ""


def _graph_of(calls: Sequence[Call]) -> ModelGraph:
    """Return the graph of a step of *calls*, by the reader of modules.

    Raises:
        GraphError: A module cannot run on shapes.
    """
    inputs = []
    for call in calls:
        args, kwargs = call.arguments(_on_meta)
        # transformers 5.24 calls a `DynamicCache` ``cache``.
        caches = _CACHES | {name for name, each in kwargs.items() if type(each).__name__.endswith("Cache")}
        inputs.append((args, {name: each for name, each in kwargs.items() if name not in caches}))
    if len(calls) == 1:
        return graph_from_module(calls[0].module, inputs[0][0], keywords=inputs[0][1])

    names = dict.fromkeys(type(call.module).__name__ for call in calls)
    return graph_from_module(_Step(calls), tuple(inputs), name="+".join(names))


def _on_meta(leaf: Any) -> Any:
    """Return a tensor of this shape; a single number is 1, because programs read its value."""
    if not isinstance(leaf, Shape):
        return leaf
    if not leaf.sizes:
        return torch.ones((), dtype=leaf.dtype)
    return torch.empty(leaf.sizes, dtype=leaf.dtype, device="meta")


def _batch(call: Call, graph: ModelGraph | None) -> Key:
    shapes = call.shapes()
    leads = [each.sizes for each in shapes if len(each.sizes) > 1] or [each.sizes for each in shapes]
    if not leads:
        return "1", GUESSED
    # Without a graph nothing shows which size follows the batch.
    if graph is None or (graph.fixed_batch_size is not None and call.outer is not None):
        lead = Batch(size=leads[0][0])
        args, kwargs = (call.outer or call).arguments(_on_meta)
        inputs = args or tuple(kwargs.values())
        return str(sample_count(inputs, lead)), GUESSED
    if graph.fixed_batch_size is not None:
        return str(graph.fixed_batch_size), GUESSED

    return str(leads[0][SEQUENCES_FIRST_NOTE in graph.notes]), SEEN


def _precision(calls: Sequence[Call], computed: str | None, divided: str | None) -> Key:
    if divided:
        return divided, SEEN

    counts: Counter[str] = Counter()
    largest = max(modules_of(calls), key=lambda module: weight_count([module]))
    read = {id(part.weight) for part in parts_of(largest) if isinstance(part, nn.Embedding)}
    for weight in weights_of(largest):
        counts[str(weight.dtype)] += weight.numel() * (id(weight) not in read)
    # Norms often stay in fp32, so that the type of most weights counts; embeddings are only read.
    usual = max(counts, key=counts.__getitem__)
    if usual in PURE:
        return PURE[usual], SEEN
    if precision := calls[0].precision or computed:
        return precision, SEEN
    # tf32 is a setting of the process, not of a tensor.
    matmul = torch.backends.cuda.matmul
    is_tf32 = torch.get_float32_matmul_precision() != "highest" or matmul.allow_tf32
    return "tf32" if is_tf32 else "fp32", SEEN


def _training(observation: Observation, calls: Sequence[Call]) -> dict[str, Key]:
    optimizer = _optimizer(observation.optimizers)
    keys = {"optimizer": optimizer if observation.accumulate else (optimizer[0], GUESSED)}
    if observation.accumulate and observation.accumulate > 1:
        keys["accumulate"] = (str(observation.accumulate), SEEN if observation.is_full else GUESSED)
    modules = modules_of(calls)
    total, trained = weight_count(modules), weight_count(modules, only_trained=True)
    if 0 < trained < _ALMOST_ALL * total:
        keys["trainable"] = (f"{trained / total:.4g}", SEEN)
    has_attribute = any(
        getattr(part, name, False) is True for module in modules for part in parts_of(module) for name in CHECKPOINTING
    )
    if observation.left_out.is_checkpointed or has_attribute:
        keys["checkpointing"] = ("on", SEEN)
    if observation.left_out.gpu_count > 1:
        keys["gpus"] = (str(observation.left_out.gpu_count), SEEN)
        strategy = observation.left_out.strategy
        keys["strategy"] = (strategy or "ddp", SEEN if strategy else GUESSED)

    return keys


def _optimizer(optimizers: Sequence[Any]) -> Key:
    """Return the word for the optimizer with the most weights; without an optimizer, SGD by hand."""
    if not optimizers:
        return "sgd", GUESSED

    # accelerate and DeepSpeed wrap the program's optimizer.
    largest = max(optimizers, key=lambda each: sum(p.numel() for group in each.param_groups for p in group["params"]))
    inner = getattr(largest, "optimizer", largest)
    name = type(inner).__name__
    word = _OPTIMIZERS.get(name)
    if word == "sgd" and inner.param_groups[0].get("momentum"):
        return "momentum", SEEN
    # Two numbers for each weight, the most of the usual optimizers: a share then has room.
    if word is None:
        return "adam", GUESSED
    return word, SEEN if word == name.lower() else MAPPED
