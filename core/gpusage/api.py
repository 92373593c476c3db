"""The Python API: the advisor with everything that is installed, as four functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gpusage.advisor import Advisor, make_advisor
from gpusage.arguments import read_alone, read_share, read_workload
from gpusage.batch_search import largest_batches
from gpusage.devices.shares import WHOLE_PERCENT
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Colocation, GpuNeed, ModelGraph


@cache
def advisor() -> Advisor:
    """Return the advisor that this process shares."""
    return make_advisor()


def read_model(
    source: Any,  # noqa: ANN401 - a torch.nn.Module or ExportedProgram, and torch may not be installed
    example_inputs: tuple[Any, ...] = (),
    *,
    shape: Mapping[str, Sequence[int]] | None = None,
) -> ModelGraph:
    """Return the graph of a model.

    Args:
        source: A path, a name such as ``timm:resnet50``, a `torch.nn.Module` or a `torch.export.ExportedProgram`.
        example_inputs: What a module is called with, batch first; tensors on any device, their values are not used.
        shape: Sizes of free dimensions: ``{"input": (3, 288, 288)}`` for a whole input, ``{"seq": (128,)}`` by name.

    Raises:
        GraphError: The model cannot be read.
    """
    if isinstance(source, (str, Path)):
        return advisor().read(str(source), shape)
    from gpusage.graphs.torch.module import graph_from_module  # noqa: PLC0415 - torch is an extra

    return graph_from_module(source, example_inputs)


def predict(
    graph: ModelGraph,
    *,
    gpu: str,
    share: int = WHOLE_PERCENT,
    utilization: float | None = None,
    step_time_s: float | None = None,
    **workload: Any,  # noqa: ANN401 - the fields of Workload
) -> GpuNeed:
    """Return what *graph* needs on *gpu*, or on a share of it.

    Args:
        graph: As `read_model` returns it.
        gpu: A name of the catalogue, or an alias such as ``a100``.
        share: The share's MPS active thread percentage, 1 to 100.
        utilization: The GPU utilization that nvidia-smi showed in an earlier run alone on this GPU, 0 to 1.
        step_time_s: The step time of such a run, in seconds.
        workload: Fields of `gpusage_hooks.types.Workload`: ``batch_size``, ``mode``, ``precision``, ``optimizer``.

    Raises:
        DeviceError: The GPU is not in the catalogue.
        RequestError: Another argument is not what it may be.
    """
    run = replace(read_workload(workload), alone=read_alone(utilization, step_time_s))
    return advisor().predict_shares(graph, run, [advisor().catalogue.find(gpu)], [read_share(share)])[0]


def largest_batch(
    graph: ModelGraph,
    *,
    gpu: str,
    share: int = WHOLE_PERCENT,
    **workload: Any,  # noqa: ANN401 - the fields of Workload
) -> int:
    """Return the largest batch of *graph* whose memory fits on *gpu* or on a share of it, by the upper end.

    Arguments are those of `predict`, but for ``batch_size``. 0 means that not even one sample fits.

    Raises:
        DeviceError: The GPU is not in the catalogue.
        GraphError: The model has a fixed batch.
        RequestError: Another argument is not what it may be.
    """
    run, device, percents = read_workload(workload), advisor().catalogue.find(gpu), [read_share(share)]

    def fits(size: int) -> list[bool]:
        needs = advisor().predict_shares(graph, replace(run, batch_size=size), [device], percents)
        return [need.fits for need in needs]

    return largest_batches(graph, fits)[0]


def predict_colocation(needs: Sequence[GpuNeed]) -> Colocation:
    """Return what jobs do to each other on the one GPU that all *needs* were predicted for.

    Raises:
        DeviceError: The needs are not all of one GPU.
    """
    names = sorted({need.gpu for need in needs})
    if len(names) != 1:
        message = (
            f"Needs to colocate must be predicted for one GPU; got {', '.join(names) or 'none'}. Predict them anew."
        )
        raise DeviceError(message)
    return advisor().colocate(needs, advisor().catalogue.find(names[0]))
