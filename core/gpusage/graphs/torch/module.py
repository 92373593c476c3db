"""Reads a live `torch.nn.Module` or `torch.export.ExportedProgram` by running it on shapes alone.

The module runs twice on PyTorch's ``meta`` device, where tensors have a shape and no values: nothing is computed, no
memory is taken, and the module itself is left as it was. Every aten operator that passes is recorded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from gpusage.graphs.edges import edge_inputs, edges_note
from gpusage.graphs.guard import printable, shown
from gpusage.graphs.torch.libraries import cannot_run, import_library, quiet
from gpusage.graphs.torch.recording import SEQUENCES_FIRST, at_any_batch, fixed_notes, is_one_sample
from gpusage.graphs.two_runs import ModelRun, graph_of
from gpusage.precisions import PURE
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

_TRIES = 2
"""A module that keeps what it worked out the first time does other things in its first run."""
_CHECKPOINTING = ("gradient_checkpointing", "grad_checkpointing")
"""By which transformers and timm mark parts whose activations are computed again."""
_SCAN = re.compile(r"(Mamba|Bamba)\w*(Mixer|Layer)$|RwkvSelfAttention$|^Mamba2?$")
SCANNED = (
    "Its scans over the sequence are counted as PyTorch's own loops; with kernels of their own (mamba_ssm, rwkv) they "
    "take far less time and memory."
)
CHOSEN = (
    "How much it chooses depends on values (boolean masks, nonzero, boxes that overlap): it is predicted as if all "
    "were chosen, the most that it can be."
)
_CHOICES = ("NonZero", "torchvision.nms")
NOTHING_TRAINED = (
    "No parameter of the module has requires_grad; training is predicted as if all had. Say trainable=SHARE otherwise."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """A module's run, the one batch size that it works at or ``None``, and what is to be said of its batch."""

    run: ModelRun
    fixed_batch_size: int | None = None
    notes: tuple[str, ...] = ()


def graph_from_module(
    source: Any,  # noqa: ANN401 - torch may not be installed
    example_inputs: tuple[Any, ...] = (),
    *,
    keywords: Mapping[str, Any] | None = None,
    name: str | None = None,
    origin: str | None = None,
) -> ModelGraph:
    """Return the graph of a module or an exported program.

    Args:
        source: A `torch.nn.Module` or a `torch.export.ExportedProgram`.
        example_inputs: What it is called with, batch first; an exported program brings its own.
        keywords: What it is called with by name, after *example_inputs*.
        name: For people; the module's class where it is None.
        origin: Where it is from, for people.

    Raises:
        GraphError: It is neither, PyTorch is not installed, or it does not run on the inputs.
    """
    torch = import_library("torch")
    module, arguments, words = _callable(torch, source, example_inputs, dict(keywords or {}))
    label = printable(name or type(source).__name__)
    edges = _edges(torch, module, arguments, words)
    with quiet(), _evaluating(module):
        played = _played(module, arguments, words, label, is_graph=bool(edges))
    run = played.run
    scans = sum(_SCAN.search(type(part).__name__) is not None for part in module.modules())
    return graph_of(
        replace(run, unknown=run.unknown + Counter({"selective_scan": scans})),
        name=label,
        source=origin or f"torch:{label}",
        parameter_count=sum({id(weight): weight.numel() for weight in module.parameters()}.values()),
        fixed_batch_size=played.fixed_batch_size,
        notes=(
            *([edges_note(edges)] if edges else []),
            *played.notes,
            *([SCANNED] if scans else []),
            *([CHOSEN] if any(run.unknown[name] for name in _CHOICES) else []),
        ),
    )


def with_settings_of(graph: ModelGraph, module: Any) -> ModelGraph:  # noqa: ANN401 - torch may not be installed
    """Return *graph* with the share of parameters that *module* trains, and what else it was told of its run, as notes.

    The share is what LoRA leaves; all, where the module trains none.

    Args:
        graph: Of *module*.
        module: Its parameters say by ``requires_grad`` whether they are trained.
    """
    graph = replace(graph, notes=(*graph.notes, *_setting_notes(module)))
    parameters = getattr(module, "parameters", None)
    weights = {id(weight): weight for weight in parameters()} if callable(parameters) else {}
    trained = sum(weight.numel() for weight in weights.values() if weight.requires_grad)
    total = sum(weight.numel() for weight in weights.values())
    if trained == total:
        return graph
    if not trained:
        return replace(graph, notes=(*graph.notes, NOTHING_TRAINED))
    note = f"The module trains {100 * trained / total:.3g} % of its parameters; the others have requires_grad=False."
    return replace(graph, trainable=trained / total, notes=(*graph.notes, note))


def _setting_notes(module: Any) -> Iterator[str]:  # noqa: ANN401 - torch may not be installed
    """Yield a sentence for each setting of *module* that its graph does not show."""
    parts = list(module.modules()) if hasattr(module, "modules") else []
    if any(hasattr(part, "_orig_mod") for part in parts):
        yield "The module is compiled, which counts only where you say compile=True, in inference in half precision."
    if any(getattr(part, name, False) is True for part in parts for name in _CHECKPOINTING):
        yield "The module has checkpoints on, which do not count unless you say checkpointing=True."
    kinds = {str(weight.dtype) for part in parts for weight in part.parameters(recurse=False)}
    for kind in sorted(kinds & PURE.keys()):
        yield (
            f"The module has weights of {kind}, which count in the precision that you name: precision='{PURE[kind]}' "
            "has two bytes for each."
        )


def _callable(
    torch: Any,  # noqa: ANN401 - the module
    source: Any,  # noqa: ANN401 - a user may hand over anything
    arguments: tuple[Any, ...],
    words: dict[str, Any],
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if isinstance(source, torch.export.ExportedProgram):
        given = source.example_inputs if not arguments and not words else None
        with quiet():
            module = source.module()
        return (module, *given) if given else (module, arguments, words)
    while isinstance(source, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        source = source.module  # what each GPU runs
    if isinstance(source, torch.nn.Module) and not isinstance(source, torch.jit.ScriptModule):
        return source, tuple(arguments), words
    message = (
        "Model must be a path, a name, a torch.nn.Module or a torch.export.ExportedProgram; "
        f"got {type(source).__name__}. Hand over one of these."
    )
    raise GraphError(message)


def _played(
    module: Any,  # noqa: ANN401 - torch may not be installed
    arguments: tuple[Any, ...],
    words: dict[str, Any],
    label: str,
    *,
    is_graph: bool,
) -> _Played:
    """Return the run for any batch size; where there is none, that at the inputs' own batch size, and that size."""
    from gpusage.graphs.torch.batches import batch_of, resized, sample_count  # noqa: PLC0415 - it imports torch
    from gpusage.graphs.torch.trace import play  # noqa: PLC0415 - as above

    batch = batch_of((arguments, words))
    if batch is None:
        message = f"Model {shown(label)} must be given example inputs, batch first; got no tensor. Pass example_inputs."
        raise GraphError(message)
    try:
        played = None if is_graph else _played_at_any_batch(module, (arguments, words))
        if played is not None:
            return played
    except GraphError:
        raise
    except Exception:  # noqa: BLE001, S110 - a program may be made for one batch size; tried below
        pass
    try:
        run = play(module, *resized((arguments, words), batch, batch.size))
    except GraphError:
        raise
    except Exception as error:
        rule = "run on the shapes of its example inputs, without their values"
        raise cannot_run(label, rule, error) from error
    is_one = is_graph or is_one_sample(run)
    fixed = 1 if is_one else sample_count(arguments or tuple(words.values()), batch)
    return _Played(run=run, fixed_batch_size=fixed, notes=() if is_graph else fixed_notes(fixed))


def _played_at_any_batch(module: Any, inputs: tuple[Any, Any]) -> _Played | None:  # noqa: ANN401 - as above
    """Return the run for any batch size, ``None`` where its sizes do not follow the batch.

    A layer that takes sequences first says that the second size is the batch.
    """
    run, is_turned = _at_place(module, inputs, 0)
    if run is None or not is_turned:
        return None if run is None else _Played(run=run)
    try:
        turned, is_turned = _at_place(module, inputs, 1)
    except Exception:  # noqa: BLE001 - its second size is no batch either
        turned = None
    if turned is None or is_turned:
        return _Played(run=run)
    return _Played(run=turned, notes=(SEQUENCES_FIRST,))


def _at_place(module: Any, inputs: tuple[Any, Any], place: int) -> tuple[ModelRun | None, bool]:  # noqa: ANN401
    """Return the run for any batch size, that size at *place*, and whether a layer took it for its steps."""
    from gpusage.graphs.torch import batches  # noqa: PLC0415 - it imports torch
    from gpusage.graphs.torch.trace import play  # noqa: PLC0415 - as above

    batch = batches.batch_of(inputs, place)
    if batch is None:
        return None, False
    for _ in range(_TRIES):
        with batches.watched(module) as shapes:
            run = at_any_batch(lambda size: play(module, *batches.resized(inputs, batch, size)))
        if run is not None:
            return run, batches.steps_follow(shapes)
    return None, False


def _edges(
    torch: Any,  # noqa: ANN401 - the module
    module: Any,  # noqa: ANN401 - torch may not be installed
    arguments: tuple[Any, ...],
    words: dict[str, Any],
) -> str:
    """Return the names of the arguments that list the edges of a graph, ``""`` where none does."""
    names = list(signature(module.forward).parameters) if hasattr(module, "forward") else []
    given = [*zip(names, arguments, strict=False), *words.items()]
    tensors = [(name, each) for name, each in given if isinstance(each, torch.Tensor)]
    return edge_inputs((name, each.shape, not each.is_floating_point()) for name, each in tensors)


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:  # noqa: ANN401 - torch may not be installed
    """Run *module* as in inference, as exporters do; put each part back as it was."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, training in modes:
            part.training = training
