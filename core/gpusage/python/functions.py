"""The functions of `import gpusage`: a model is read, predicted, explained, and predicted beside others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from gpusage.decisions.advisor import advisor
from gpusage.decisions.prediction import largest_batches, with_model_settings
from gpusage.devices.shares import share_of
from gpusage.predictors.explanation import explanation_of
from gpusage.python import arguments
from gpusage.python.arguments import Run, require
from gpusage.python.results import Explained, Need, Needs
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Colocation, Gpu, GpuNeed, ModelGraph
from gpusage_hooks.units import WHOLE_PERCENT

if TYPE_CHECKING:
    from typing_extensions import Unpack

Function = TypeVar("Function", bound=Callable[..., Any])


def _with_workload_fields(*left_out: str) -> Callable[[Function], Function]:
    """Let help and completion show the fields of a workload, but for *left_out*, as the arguments that they are."""

    def show(function: Function) -> Function:
        own = signature(function)
        named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        fields = [each for each in arguments.parameters() if each.name not in left_out]
        function.__dict__["__signature__"] = own.replace(parameters=[*named, *fields])
        return function

    return show


def read_model(
    source: Any,  # a torch.nn.Module or ExportedProgram, and torch may not be installed
    example_inputs: Any = (),  # tensors, and torch may not be installed
    *,
    shape: Mapping[str, int | Sequence[int]] | None = None,
) -> ModelGraph:
    """Return the graph of a model.

    Args:
        source: A path, a name such as ``timm:resnet50``, a `torch.nn.Module` or a `torch.export.ExportedProgram`.
        example_inputs: What a module is called with, batch first: a tensor, several in a tuple or a list, or tensors by
            the names of the module's arguments in a dictionary. They may be on any device; their values are not used.
        shape: Sizes of free dimensions of a path or a name: ``{"seq": 128}`` by name, ``{"input": (3, 288, 288)}`` for
            a whole input.

    A module whose parameters have ``requires_grad=False``, as LoRA leaves them, is predicted with the share that it
    trains, unless ``trainable`` is given; inference of a model with quantised weights with their precision, unless
    ``precision`` is given.

    Raises:
        GraphError: The model cannot be read.
        RequestError: An argument is not what it may be.
    """
    sizes, (positional, keywords) = arguments.read_shape(shape), arguments.read_examples(example_inputs)
    if isinstance(source, (str, Path)):
        rule = "be left out where the model is a path or a name; 'shape' sets its sizes"
        require("Argument 'example_inputs'", rule, example_inputs, right=not positional and not keywords)
        return advisor().read(str(source), sizes)

    rule = "be a path, a name, a torch.nn.Module or a torch.export.ExportedProgram"
    require("Argument 'source'", rule, source, right=hasattr(source, "forward") or hasattr(source, "graph_module"))
    rule = "be left out where the model is a module; 'example_inputs' have its sizes"
    require("Argument 'shape'", rule, shape, right=not sizes)
    from gpusage.graphs.torch.module import graph_from_module, with_settings_of  # torch is an extra

    return with_settings_of(graph_from_module(source, positional, keywords=keywords), source)


@overload
def predict(  # noqa: D418 - tests/test_exports.py wants a docstring on each
    graph: ModelGraph | str | Path,
    *,
    gpu: str,
    share: int = WHOLE_PERCENT,
    utilization: float | tuple[float, int] | None = None,
    step_time_s: float | None = None,
    **run: Unpack[Run],
) -> Need:
    """Return what a model needs on one GPU."""


@overload
def predict(  # noqa: D418 - as above
    graph: ModelGraph | str | Path,
    *,
    gpu: list[str] | tuple[str, ...],
    share: int = WHOLE_PERCENT,
    utilization: float | tuple[float, int] | None = None,
    step_time_s: float | None = None,
    **run: Unpack[Run],
) -> Needs:
    """Return what a model needs on each of several GPUs."""


@_with_workload_fields()
def predict(
    graph: ModelGraph | str | Path,
    *,
    gpu: str | Sequence[str],
    share: int = WHOLE_PERCENT,
    utilization: float | tuple[float, int] | None = None,
    step_time_s: float | None = None,
    **run: Unpack[Run],
) -> Need | Needs:
    """Return what a model needs on a GPU, or on a share of it; of several GPUs, what it needs on each.

    Args:
        graph: As `read_model` returns it; a path or a name is read.
        gpu: A name of the catalogue, an alias such as ``a100``, or a list of names.
        share: The share's MPS active thread percentage, 1 to 100.
        utilization: The GPU utilization that nvidia-smi showed in an earlier run alone on this GPU, 0 to 1; with the
            batch size of that run, ``(0.6, 32)``, where it was another.
        step_time_s: The step time of such a run, in seconds.
        run: How the model is run: the fields of `Run`.

    Raises:
        DeviceError: A GPU is not in the catalogue.
        GraphError: The model cannot be read, or was exported for another batch size.
        RequestError: An argument is not what it may be.
    """
    names, percent = arguments.read_gpus(gpu), arguments.read_share(share)
    workload = replace(arguments.read_workload(run), alone=arguments.read_alone(utilization, step_time_s))
    gpus = [advisor().catalogue.find(name) for name in names]
    # The arguments are checked first: a model may take seconds to read.
    model = _graph(graph)
    needs = advisor().predict_shares(model, with_model_settings(workload, run, model), gpus, [percent])
    return Need.of(needs[0]) if isinstance(gpu, str) else Needs(map(Need.of, needs))


@_with_workload_fields("batch_size")
def largest_batch(graph: ModelGraph | str | Path, *, gpu: str, share: int = WHOLE_PERCENT, **run: Unpack[Run]) -> int:
    """Return the largest batch of a model whose memory fits on a GPU or on a share of it, by the upper end.

    Arguments are those of `predict`, but for ``batch_size``. 0 means that not even one sample fits.

    Raises:
        DeviceError: The GPU is not in the catalogue.
        GraphError: The model cannot be read, or has a fixed batch.
        RequestError: An argument is not what it may be.
    """
    require("Argument 'batch_size'", "be left out", run.get("batch_size"), right="batch_size" not in run)
    workload, device, percents = arguments.read_workload(run), _one_gpu(gpu), [arguments.read_share(share)]
    model = _graph(graph)
    workload = with_model_settings(workload, run, model)

    def fits(size: int) -> list[bool]:
        needs = advisor().predict_shares(model, replace(workload, batch_size=size), [device], percents)
        return [need.fits for need in needs]

    return largest_batches(model, fits)[0]


@_with_workload_fields()
def explain(graph: ModelGraph | str | Path, *, gpu: str, shares: Sequence[int] = (), **run: Unpack[Run]) -> Explained:
    """Return where the time and the memory of a step go: by operator class and by layer.

    Args:
        graph: As `predict` takes it.
        gpu: A name of the catalogue.
        shares: Shares of the GPU, in percent, that each operator class is to have a slowdown for.
        run: As `predict` takes it.

    Raises:
        DeviceError: The GPU is not in the catalogue.
        GraphError: The model cannot be read.
        RequestError: An argument is not what it may be.
    """
    require("Argument 'shares'", "be a list of percents", shares, right=isinstance(shares, Sequence))
    device = _one_gpu(gpu)
    parts = {percent: share_of(device, percent) for percent in map(arguments.read_share, shares)}
    workload, model = arguments.read_workload(run), _graph(graph)
    return Explained.of(explanation_of(model, with_model_settings(workload, run, model), device, parts))


def predict_colocation(needs: Sequence[GpuNeed]) -> Colocation:
    """Return what jobs do to each other on the one GPU that all *needs* were predicted for.

    Raises:
        DeviceError: The needs are not all of one GPU.
        RequestError: They are no needs.
    """
    right = isinstance(needs, Sequence) and all(isinstance(need, GpuNeed) for need in needs)
    require("Argument 'needs'", "be a list of what gpusage.predict returns", needs, right=right)

    names = sorted({need.gpu for need in needs})
    if len(names) != 1:
        message = (
            f"Needs to colocate must be predicted for one GPU; got {', '.join(names) or 'none'}. Predict them again."
        )
        raise DeviceError(message)
    return advisor().colocate(needs, advisor().catalogue.find(names[0]))


def _one_gpu(name: str) -> Gpu:
    require("Argument 'gpu'", "be a name such as 'a100'", name, right=isinstance(name, str))
    return advisor().catalogue.find(name)


def _graph(model: ModelGraph | str | Path) -> ModelGraph:
    if isinstance(model, (str, Path)):
        return read_model(model)
    rule = "be what gpusage.read_model returns, a path or a name"
    require("Argument 'graph'", rule, model, right=isinstance(model, ModelGraph))
    return model
