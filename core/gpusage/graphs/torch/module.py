"""Reads a live `torch.nn.Module` or `torch.export.ExportedProgram` by running it on shapes alone.

The module runs twice on PyTorch's ``meta`` device, where tensors have a shape and no values: nothing is computed, no
memory is allocated, and the module does not change. Every aten operator is recorded.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from gpusage.devices.precisions import PURE
from gpusage.graphs.batch_sizes import ModelRun, edge_list_inputs, edges_note, to_graph
from gpusage.graphs.model_files import printable, quoted
from gpusage.graphs.torch.libraries import import_library, model_error, without_warnings
from gpusage.graphs.torch.recording import SEQUENCES_FIRST_NOTE, at_any_batch, fixed_notes, is_one_sample
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

# A module with a cache of its own runs other operators the first time.
_ATTEMPTS = 2
# Of the weights of a convolution of images: channels written, channels read, rows and columns.
_FILTER_RANK = 4
# Attributes by which transformers and timm mark modules whose activations are computed again.
CHECKPOINTING = ("gradient_checkpointing", "grad_checkpointing")
_SCAN = re.compile(r"(Mamba|Bamba)\w*(Mixer|Layer)$|RwkvSelfAttention$|^Mamba2?$")
SCAN_NOTE = (
    "Its scans over the sequence are counted as PyTorch's own loops; with kernels of their own (mamba_ssm, rwkv) they "
    "take far less time and memory."
)
SELECTION_NOTE = (
    "How much it selects depends on values (boolean masks, nonzero, boxes that overlap): the prediction assumes that "
    "everything is selected, the maximum."
)
ONES_NOTE = "It reads values of its masks or tokens: the prediction assumes that all are 1, so nothing is masked."
_SELECTIONS = ("NonZero", "torchvision.nms")
NOTHING_TRAINED_NOTE = (
    "No parameter of the module has requires_grad; the prediction assumes that all have. Otherwise set trainable=SHARE."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModuleRun:
    """A module's run, the one batch size that it works at or ``None``, and notes on its batch."""

    run: ModelRun
    fixed_batch_size: int | None = None
    notes: tuple[str, ...] = ()


def graph_from_module(
    source: Any,  # torch may not be installed
    example_inputs: tuple[Any, ...] = (),
    *,
    keywords: Mapping[str, Any] | None = None,
    name: str | None = None,
    origin: str | None = None,
) -> ModelGraph:
    """Return the graph of a module or an exported program.

    Args:
        source: A `torch.nn.Module` or a `torch.export.ExportedProgram`.
        example_inputs: Its positional arguments, batch first; an exported program has its own.
        keywords: Its keyword arguments.
        name: For people; by default the module's class.
        origin: The source, for people.

    Raises:
        GraphError: *source* is neither, PyTorch is not installed, or it does not run on the inputs.
    """
    torch = import_library("torch")
    module, arguments, keywords = _callable(torch, source, example_inputs, dict(keywords or {}))
    label = printable(name or type(source).__name__)
    # Some models read a graph: the names of the arguments that list its edges.
    parameters = list(signature(module.forward).parameters) if hasattr(module, "forward") else []
    named = [*zip(parameters, arguments, strict=False), *keywords.items()]
    tensors = [(key, each) for key, each in named if isinstance(each, torch.Tensor)]
    edges = edge_list_inputs((key, each.shape, not each.is_floating_point()) for key, each in tensors)

    with without_warnings(), unchanged(module):
        for part in module.modules():
            part.training = False  # as exporters do
        result = _run_module(module, arguments, keywords, label, is_graph=bool(edges))
    run = result.run
    scans = sum(_SCAN.search(type(part).__name__) is not None for part in module.modules())

    return to_graph(
        replace(run, unknown=run.unknown + Counter({"selective_scan": scans})),
        name=label,
        source=origin or f"torch:{label}",
        parameter_count=sum({id(weight): weight.numel() for weight in module.parameters()}.values()),
        fixed_batch_size=result.fixed_batch_size,
        notes=(
            *([edges_note(edges)] if edges else []),
            *result.notes,
            *([SCAN_NOTE] if scans else []),
            *([SELECTION_NOTE] if any(run.unknown[name] for name in _SELECTIONS) else []),
        ),
    )


def with_settings_of(graph: ModelGraph, module: Any) -> ModelGraph:  # torch may not be installed
    """Return *graph* with the share of parameters that *module* trains, and notes on its other settings.

    With LoRA the share is small. If no parameter has ``requires_grad``, it is 1.

    Args:
        graph: The graph of *module*.
        module: A `torch.nn.Module`.
    """
    graph = replace(graph, notes=(*graph.notes, *_setting_notes(module)))
    parameters = getattr(module, "parameters", None)
    weights = {id(weight): weight for weight in parameters()} if callable(parameters) else {}
    trained = sum(weight.numel() for weight in weights.values() if weight.requires_grad)
    total = sum(weight.numel() for weight in weights.values())
    if trained == total:
        return graph
    if not trained:
        return replace(graph, notes=(*graph.notes, NOTHING_TRAINED_NOTE))

    note = f"The module trains {100 * trained / total:.3g} % of its parameters; the others have requires_grad=False."
    return replace(graph, trainable=trained / total, notes=(*graph.notes, note))


def _setting_notes(module: Any) -> Iterator[str]:  # torch may not be installed
    """Yield a note for each setting of *module* that its graph does not have."""
    parts = list(module.modules()) if hasattr(module, "modules") else []
    if any(hasattr(part, "_orig_mod") for part in parts):
        yield "The module is compiled; this counts only with compile=True, in inference in half precision."
    if any(getattr(part, name, False) is True for part in parts for name in CHECKPOINTING):
        yield "The module has checkpoints on; they count only with checkpointing=True."
    if parts and has_channels_last(module):
        yield "The module's weights are channels last; this counts only with layout='channels_last'."
    kinds = {str(weight.dtype) for part in parts for weight in part.parameters(recurse=False)}
    for kind in sorted(kinds & PURE.keys()):
        yield (
            f"The module has weights of {kind}, which count in the precision that you name: precision='{PURE[kind]}' "
            "has two bytes for each."
        )


def has_channels_last(module: Any) -> bool:  # torch may not be installed
    """Return whether the strides of a filter for images in *module* are those of ``torch.channels_last`` alone."""
    return any(
        weight.dim() == _FILTER_RANK and weight.stride()[1] == 1 and not weight.is_contiguous()
        for weight in module.parameters()
    )


def _callable(
    torch: Any,  # the module
    source: Any,  # a user may hand over anything
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if isinstance(source, torch.export.ExportedProgram):
        # The inputs that it was exported with, unless the caller gives others.
        own_inputs = source.example_inputs if not arguments and not keywords else None
        with without_warnings():
            module = source.module()
        return (module, *own_inputs) if own_inputs else (module, arguments, keywords)

    while isinstance(source, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        source = source.module  # what each GPU runs
    if isinstance(source, torch.nn.Module) and not isinstance(source, torch.jit.ScriptModule):
        return source, tuple(arguments), keywords
    message = (
        "Model must be a path, a name, a torch.nn.Module or a torch.export.ExportedProgram; "
        f"got {type(source).__name__}. Hand over one of these."
    )
    raise GraphError(message)


def _run_module(
    module: Any,  # torch may not be installed
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    label: str,
    *,
    is_graph: bool,
) -> _ModuleRun:
    """Return the run for any batch size, else the run at the inputs' batch size."""
    from gpusage.graphs.torch import batches  # it imports torch
    from gpusage.graphs.torch.trace import run_on_meta

    # The batch is the first size of the first input with features.
    batch = batches.find_batch((arguments, keywords))
    if batch is None:
        message = (
            f"Model {quoted(label)} must be given example inputs, batch first; got no tensor. Pass example_inputs."
        )
        raise GraphError(message)
    inputs = batches.as_autocast(module, (arguments, keywords))
    # Ones for tokens and masks: a model may branch on their values, and ones mask nothing.
    ways = (False, True) if batches.has_whole_numbers(inputs) else (False,)
    for as_ones in () if is_graph else ways:
        try:
            result = _run_at_any_batch(module, inputs, as_ones=as_ones)
        except GraphError:
            raise
        except Exception:  # noqa: S112 - it may read values, or be made for one batch size; tried below
            continue
        if result is not None:
            return replace(result, notes=(*result.notes, ONES_NOTE)) if as_ones else result
        break
    failure: Exception | None = None
    for as_ones in ways:
        try:
            run = run_on_meta(module, *batches.resize_batch(inputs, batch, batch.size, as_ones=as_ones))
            break
        except GraphError:
            raise
        except Exception as error:  # raised below, in our words
            failure = failure or error
    else:
        rule = "run on the shapes of its example inputs, without their values"
        raise model_error(label, rule, failure or RuntimeError()) from failure
    read_ones = (ONES_NOTE,) if as_ones else ()
    is_one = is_graph or is_one_sample(run)
    fixed = 1 if is_one else batches.sample_count(arguments or tuple(keywords.values()), batch)
    return _ModuleRun(run=run, fixed_batch_size=fixed, notes=(*(() if is_graph else fixed_notes(fixed)), *read_ones))


def _run_at_any_batch(module: Any, inputs: tuple[Any, Any], *, as_ones: bool) -> _ModuleRun | None:
    """Return the run for any batch size, ``None`` if its sizes do not follow the batch.

    If a layer reads sequences first (``batch_first=False``), the batch is the second axis of the inputs.
    """
    run, steps_vary = _run_with_batch_axis(module, inputs, 0, as_ones=as_ones)
    if run is None or not steps_vary:
        return None if run is None else _ModuleRun(run=run)

    try:
        second_axis_run, steps_vary = _run_with_batch_axis(module, inputs, 1, as_ones=as_ones)
    except Exception:  # the second axis is no batch either
        second_axis_run = None
    if second_axis_run is None or steps_vary:
        return _ModuleRun(run=run)
    return _ModuleRun(run=second_axis_run, notes=(SEQUENCES_FIRST_NOTE,))


def _run_with_batch_axis(
    module: Any,  # torch may not be installed
    inputs: tuple[Any, Any],
    axis: int,
    *,
    as_ones: bool,
) -> tuple[ModelRun | None, bool]:
    """Return the run for any batch size on *axis*, and whether a layer reads that axis as steps."""
    from gpusage.graphs.torch import batches  # it imports torch
    from gpusage.graphs.torch.trace import run_on_meta

    batch = batches.find_batch(inputs, axis)
    if batch is None:
        return None, False
    # Shapes of layers that read sequences first show whether this axis is the batch at all.
    for _ in range(_ATTEMPTS):
        with batches.record_sequence_shapes(module) as shapes:
            run = at_any_batch(
                lambda size: run_on_meta(module, *batches.resize_batch(inputs, batch, size, as_ones=as_ones))
            )
        if run is not None:
            return run, batches.steps_vary_with_batch(shapes)
    return None, False


@contextmanager
def unchanged(module: Any) -> Iterator[None]:  # torch may not be installed
    """Restore what each part of *module* holds, its buffers too: a mask kept from a run on shapes has no values."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    # A module may keep a mask or a cache in a dict or a list of its own.
    containers = [
        (each, copy(each))
        for _, attributes in before
        for each in attributes.values()
        if type(each) in (dict, OrderedDict, list)
    ]

    try:
        yield
    finally:
        for part, attributes in before:
            vars(part).clear()
            vars(part).update(attributes)
        for container, content in containers:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
