"""Reads a live `torch.nn.Module` or `torch.export.ExportedProgram` by running it on shapes alone.

The module runs twice on PyTorch's ``meta`` device, where tensors have a shape and no values: nothing is computed, no
memory is taken, and the module itself is left as it was. Every aten operator that passes is recorded.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpusage.graphs.guard import printable, shown
from gpusage.graphs.recording import BATCHES, Recording, graph_of, merged
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

_TRIES = 2
"""A module that keeps what it worked out the first time does other things in its first run."""


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
    batch = _batch_size(torch, (arguments, words), label)
    with _quiet(), _evaluating(module):
        recording, fixed = _play_twice(module, arguments, words, batch=batch, label=label)
    return graph_of(
        recording,
        name=label,
        source=origin or f"torch:{label}",
        parameter_count=sum({id(weight): weight.numel() for weight in module.parameters()}.values()),
        fixed_batch_size=fixed,
    )


def import_library(name: str) -> Any:  # noqa: ANN401 - a module
    """Return the library *name*, one of the extra ``[torch]``.

    Raises:
        GraphError: It is not installed.
    """
    try:
        with _quiet():
            return importlib.import_module(name)
    except ImportError as error:
        rule = f"Library {name} must be there for this model; got: not installed."
        message = f"{rule} Install gpusage with its extra [torch]."
        raise GraphError(message) from error


def build_on_meta(build: Callable[[], Any], source: str) -> Any:  # noqa: ANN401 - a torch.nn.Module
    """Return what *build* makes on the meta device, without weights.

    Raises:
        GraphError: The library cannot build it.
    """
    torch = import_library("torch")
    try:
        with _quiet():
            try:
                with torch.device("meta"):
                    return build()
            except NotImplementedError:  # it computes sizes with tensors, which have values on a processor alone
                with _weights_on_meta(torch):
                    return build().to("meta")
    except GraphError:
        raise
    except Exception as error:
        raise _cannot_run(source, "be one that its library can build", error) from error


@contextmanager
def _weights_on_meta(torch: Any) -> Iterator[None]:  # noqa: ANN401 - the module
    """Let modules drop each weight as they register it; it was allocated, but nothing has been written to it yet."""
    usual = torch.nn.Module.register_parameter

    def register(module: Any, name: str, weight: Any) -> None:  # noqa: ANN401 - a module, a parameter
        kept = weight if weight is None else torch.nn.Parameter(weight.to("meta"), requires_grad=weight.requires_grad)
        usual(module, name, kept)

    torch.nn.Module.register_parameter = register
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = usual


def _callable(
    torch: Any,  # noqa: ANN401 - the module
    source: Any,  # noqa: ANN401 - a user may hand over anything
    arguments: tuple[Any, ...],
    words: dict[str, Any],
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if isinstance(source, torch.export.ExportedProgram):
        given = source.example_inputs if not arguments and not words else None
        with _quiet():
            module = source.module()
        return (module, *given) if given else (module, arguments, words)
    if isinstance(source, torch.nn.Module) and not isinstance(source, torch.jit.ScriptModule):
        return source, tuple(arguments), words
    message = (
        "Model must be a path, a name, a torch.nn.Module or a torch.export.ExportedProgram; "
        f"got {type(source).__name__}. Hand over one of these."
    )
    raise GraphError(message)


def _batch_size(torch: Any, inputs: Any, label: str) -> int:  # noqa: ANN401 - torch's tree of tensors
    from torch.utils._pytree import tree_leaves  # noqa: PLC0415 - as torch

    for leaf in tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    message = f"Model {shown(label)} must be given example inputs, batch first; got no tensor. Pass example_inputs."
    raise GraphError(message)


def _play_twice(
    module: Any,  # noqa: ANN401 - torch may not be installed
    arguments: tuple[Any, ...],
    words: dict[str, Any],
    *,
    batch: int,
    label: str,
) -> tuple[Recording, int | None]:
    """Return the recording for any batch size; where there is none, that at *batch*, and *batch*."""
    from gpusage.graphs.torch.trace import play, resized  # noqa: PLC0415 - it imports torch

    def at(size: int) -> Recording:
        return play(module, *resized((arguments, words), batch, size))

    try:
        for _ in range(_TRIES):
            recording = merged(*map(at, BATCHES))
            if recording is not None:
                return recording, None
    except GraphError:
        raise
    except Exception:  # noqa: BLE001, S110 - a program may be made for one batch size; tried below
        pass
    try:
        return at(batch), batch
    except GraphError:
        raise
    except Exception as error:
        rule = "run on the shapes of its example inputs, without their values"
        raise _cannot_run(label, rule, error) from error


def _cannot_run(label: str, rule: str, error: Exception) -> GraphError:
    lines = str(error).split("\n") if str(error) else [type(error).__name__]
    return GraphError(
        f"Model {shown(label)} must {rule}; got: {printable(lines[0])}. Check its inputs, or export it to ONNX."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings of third-party code from the user, who cannot mend them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
