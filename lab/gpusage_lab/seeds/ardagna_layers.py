"""Ardagna et al., per layer: time = b0 + b1 x complexity, learned on one network's layers, tested on another's.

Their layer times of AlexNet and GoogLeNet are not public. DeepBench has times of single convolutions of several
networks, forward and backward, which is the part that decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage_hooks.types import Gpu, ModelGraph, Node, Workload
from gpusage_lab.learning.step_operators import PRODUCT_GPUS
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder, Table

FloatArray = npt.NDArray[np.float64]
FILE = "deepbench_conv.csv"
SHAPE = ["w", "h", "c", "n", "k_filters", "filter_w", "filter_h", "pad_w", "pad_h", "stride_w", "stride_h"]
NETWORKS = ("VGG", "GoogLeNet", "ResNet", "Face Recognition", "Speaker ID")
PAPER_SAME, PAPER_OTHER = 4.75, 9.29
LEAST_S = 1e-6


class Layers(NamedTuple):
    """The convolutions of one network on one GPU; an entry a layer, seconds of a batch, forward and backward."""

    complexity: FloatArray
    measured_s: FloatArray
    ours_s: FloatArray


def table(data: DataFolder) -> ScoreTable:
    """Return the errors of a network's convolutions together, for each network that a line was fitted on."""
    layers = load(data)
    rows: list[tuple[str | float | None, ...]] = []
    for trained_on in NETWORKS:
        cells: list[float] = []
        for tested in NETWORKS:
            pairs = [(layers[trained_on, gpu], layers[tested, gpu]) for gpu in PRODUCT_GPUS]
            say = left_out if tested == trained_on else fitted
            cells.append(float(np.mean([network_error(theirs, say(known, theirs)) for known, theirs in pairs])))
        others = [cell for cell, tested in zip(cells, NETWORKS, strict=True) if tested != trained_on]
        rows.append((f"fitted on {trained_on}", *cells, float(np.mean(others))))
    rows += [_graph_only_row(layers), *(_scaled(layers, trained_on) for trained_on in NETWORKS)]
    rows.append(("the paper: AlexNet by AlexNet; AlexNet and GoogLeNet", *(None,) * 4, PAPER_SAME, PAPER_OTHER))
    return ScoreTable(
        title="Ardagna, per layer: time of a network's convolutions, forward and backward, error %",
        columns=("method", *(f"of {name}" for name in NETWORKS), "mean of other networks"),
        rows=tuple(rows),
        notes=(
            f"DeepBench, fp32, the mean of {', '.join(PRODUCT_GPUS)}: a regression a GPU, forward and backward apart.",
            "A network fitted on itself: each layer by the others.",
            "Ours: as shipped; fitted on matrix products of the same GPUs, on none of these rows.",
            "Ours scaled: one factor a GPU, by which that network's convolutions took longer than ours says.",
            "DeepBench takes the fastest of cuDNN's algorithms for each convolution, which frameworks rarely do.",
        ),
    )


def load(data: DataFolder) -> dict[tuple[str, str], Layers]:
    """Return the layers of each network on each GPU; a shape has the same network on every GPU."""
    rows = data.read(FILE)
    rows = rows[rows["precision"] == "fp32"]
    named = rows[rows["application"].notna()].drop_duplicates(SHAPE)
    names = {tuple(row[column] for column in SHAPE): network_of(row) for row in named.to_dict("records")}
    layers: dict[tuple[str, str], Layers] = {}
    for source, name in PRODUCT_GPUS.items():
        gpu = builtin_catalogue().find(name)
        by_network: dict[str, list[Table]] = {network: [] for network in NETWORKS}
        for row in rows[rows["gpu"] == source].to_dict("records"):
            by_network.get(names.get(tuple(row[column] for column in SHAPE), ""), []).append(row)
        layers |= {(network, source): _layers(of, gpu) for network, of in by_network.items()}
    return layers


def network_of(row: Table) -> str:
    """Return the network; DeepBench's 'Vision' is VGG's 3 x 3 convolutions and GoogLeNet's others."""
    if row["application"] == "Vision":
        return "VGG" if row["filter_w"] == 3 else "GoogLeNet"  # as the docstring says
    return {"Resnet": "ResNet"}.get(row["application"], str(row["application"]))


def complexities(row: Table) -> tuple[float, float]:
    """Return a convolution's complexity, forward and backward, by the paper's formulas over the whole batch."""
    outputs = row["n"] * row["k_filters"] * _side(row, "w") * _side(row, "h")
    inner = row["filter_w"] * row["filter_h"] * row["c"]
    return float(inner * outputs), float((2 * inner + 1) * outputs)


def fitted(trained_on: Layers, tested: Layers) -> FloatArray:
    """Return the seconds of *tested* by a line over the complexity, fitted on *trained_on*, for each pass."""
    times_s = np.zeros_like(tested.measured_s)
    for part in range(tested.measured_s.shape[1]):
        slope, start = np.polyfit(trained_on.complexity[:, part], trained_on.measured_s[:, part], 1)
        times_s[:, part] = np.maximum(start + slope * tested.complexity[:, part], LEAST_S)
    return times_s


def left_out(layers: Layers, _: Layers) -> FloatArray:
    """Return each layer's seconds by a line fitted on the network's other layers."""
    rows = np.arange(len(layers.measured_s))
    parts = [(Layers(*(column[rows != row] for column in layers)), row) for row in rows]
    return np.concatenate([fitted(others, Layers(*(column[[row]] for column in layers))) for others, row in parts])


def network_error(tested: Layers, predicted_s: FloatArray) -> float:
    """Return by how many percent the sum over all layers misses."""
    return 100.0 * abs(float(predicted_s.sum()) / float(tested.measured_s.sum()) - 1.0)


def _graph_only_row(layers: dict[tuple[str, str], Layers]) -> tuple[str | float | None, ...]:
    cells = [float(np.mean([network_error(layers[n, g], layers[n, g].ours_s) for g in PRODUCT_GPUS])) for n in NETWORKS]
    return ("ours, from the graph alone", *cells, float(np.mean(cells)))


def _scaled(layers: dict[tuple[str, str], Layers], trained_on: str) -> tuple[str | float | None, ...]:
    cells: list[float | None] = []
    for tested in NETWORKS:
        errors = []
        for gpu in PRODUCT_GPUS:
            factor = layers[trained_on, gpu].measured_s.sum() / layers[trained_on, gpu].ours_s.sum()
            errors.append(network_error(layers[tested, gpu], layers[tested, gpu].ours_s * factor))
        cells.append(float(np.mean(errors)) if tested != trained_on else None)
    others = [cell for cell in cells if cell is not None]
    return (f"ours, scaled by {trained_on}", *cells, float(np.mean(others)))


def _layers(rows: Sequence[Table], gpu: Gpu) -> Layers:
    measured = [
        (float(row["fwd_ms"]), sum(_milliseconds(row[name]) for name in ("bwd_inputs_ms", "bwd_params_ms")))
        for row in rows
    ]
    ours = [_ours_s(row, gpu) for row in rows]
    return Layers(
        np.array([complexities(row) for row in rows]).reshape(-1, 2),
        np.array(measured).reshape(-1, 2) / 1e3,
        np.array(ours).reshape(-1, 2),
    )


def _milliseconds(text: str | float) -> float:
    """Return a cell's figure; 'N/A*' is the gradient of an image, which nobody needs."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _ours_s(row: Table, gpu: Gpu) -> tuple[float, float]:
    graph = convolution(row)
    times = [
        float(
            WorkloadAnalysis(graph, Workload(batch_size=int(row["n"]), mode=mode, optimizer="none"))
            .timing([gpu])
            .busy_s[0]
        )
        for mode in ("infer", "train")
    ]
    return times[0], max(times[1] - times[0], LEAST_S)


def convolution(row: Table) -> ModelGraph:
    """Return the graph of one convolution; what it reads is no input of the model where it has a gradient."""
    channels, filters = int(row["c"]), int(row["k_filters"])
    weights = (filters, channels, int(row["filter_h"]), int(row["filter_w"]))
    before = (-1, channels, int(row["h"]), int(row["w"]))
    after = (-1, filters, _side(row, "h"), _side(row, "w"))
    node = Node(op_type="Conv", inputs=(before,), outputs=(after,), parameters=(weights,))
    return ModelGraph(
        name="convolution",
        source="deepbench",
        nodes=(node,),
        producers=((-1,),),
        inputs=(("input", before),),
        parameter_count=int(np.prod(weights)),
    )


def _side(row: Table, axis: str) -> int:
    return int((row[axis] + 2 * row[f"pad_{axis}"] - row[f"filter_{axis}"]) // row[f"stride_{axis}"] + 1)
