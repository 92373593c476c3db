"""Measured activity that may be learned from: GPUMemNet's random networks, and runs of gpusage profile.

A random network is a list of layers, each with its type, outputs per sample and weights; what it reads is what the
layer before it writes. The list is turned into a graph without torch.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.times.activity import features_of
from gpusage_hooks.types import Gpu, ModelGraph, Node, Shape, Workload
from gpusage_lab.learning.activity_real import yeung_features
from gpusage_lab.learning.profiled import ProfiledRun, profiled
from gpusage_lab.measurements.tables import DataFolder, Table

KINDS = MappingProxyType(
    {"gpumemnet_mlp_step1.csv": "mlp", "gpumemnet_mlp_step2.csv": "mlp", "gpumemnet_cnn.csv": "cnn"}
)
"""Each file's kind of network."""
FILES = tuple(KINDS)
_ELEMENTWISE = {
    "ReLU": "Relu",
    "PReLU": "PRelu",
    "LeakyReLU": "LeakyRelu",
    "Tanh": "Tanh",
    "Mish": "Mish",
    "SiLU": "Silu",
    "ELU": "Elu",
    "Softplus": "Softplus",
    "SELU": "Selu",
    "GELU": "Gelu",
    "Sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "Softmax": "Softmax",
    "dropout": "Dropout",
}
_MAXIMUM_HALVINGS = 8
"""How many sides of an image are tried: the input's, its half, and so on."""
_KERNEL = 9
"""Pixels of a kernel of 3 x 3."""


class NetworkLayer(NamedTuple):
    """One layer as the data has it."""

    kind: str
    outputs: int
    weights: int


class Network(NamedTuple):
    """One row: the network, how it ran, and what was measured, in percent."""

    kind: str
    architecture: str
    graph: ModelGraph
    batch_size: int
    gpu_utilization: float
    sm_activity: float


class Loaded(NamedTuple):
    """The rows that can be used, and how many could not, by reason."""

    networks: tuple[Network, ...]
    left_out: dict[str, int]


@lru_cache(maxsize=2)
def load(data: DataFolder) -> Loaded:
    """Return every measured network.

    Rows are left out that ran out of memory, were never watched (-1), have no layers, or whose SMs are said to have
    never worked at all: there the monitor read nothing, as their utilization of 3 to 6 % shows.
    """
    networks: list[Network] = []
    left_out = {"ran out of memory": 0, "not watched": 0, "no layers": 0, "monitor read nothing": 0}
    for file in FILES:
        if file not in data:
            continue
        for row in data.read(file).to_dict("records"):
            reason = _objection(row)
            if reason:
                left_out[reason] += 1
                continue
            networks.append(_network(row, file))
    return Loaded(tuple(networks), left_out)


def _objection(row: Table) -> str:
    if row.get("status", "SUCCESSFUL") != "SUCCESSFUL":
        return "ran out of memory"
    if row["avg_gpu_util_pct"] < 0:
        return "not watched"
    if row["layers_type_activations_params"] == "[]":
        return "no layers"
    return "monitor read nothing" if row["avg_sm_active_frac"] <= 0 else ""


def _network(row: Table, file: str) -> Network:
    match = re.search(r"arch:([a-z]+)", str(row["config"]))
    return Network(
        kind=KINDS[file],
        architecture=match[1] if match else "unknown",
        graph=row_graph(row, KINDS[file]),
        batch_size=int(row["batch_size"]),
        gpu_utilization=float(row["avg_gpu_util_pct"]),
        sm_activity=100.0 * float(row["avg_sm_active_frac"]),
    )


def row_graph(row: Table, kind: str) -> ModelGraph:
    """Return the graph of a row's network, ``mlp`` or ``cnn``."""
    layers = [NetworkLayer(*layer) for layer in ast.literal_eval(row["layers_type_activations_params"])]
    config = str(row["config"])
    first: Shape = (-1, _number(config, "input"))
    if kind == "cnn":
        side = _number(config, "input_size")
        first = (-1, _number(config, "input_channels"), side, side)
    return network_graph(layers, first, kind)


def _number(config: str, name: str) -> int:
    match = re.search(rf"(?:^|_){name}:(\d+)", config)
    return int(match[1]) if match else 1


def network_graph(layers: Sequence[NetworkLayer], first: Shape, name: str) -> ModelGraph:
    """Return the graph of *layers*, one after the other, that reads an input of shape *first*."""
    nodes: list[Node] = []
    shape = first
    for index, layer in enumerate(layers):
        node = _node(layer, shape, layers[index + 1] if index + 1 < len(layers) else None, first)
        if node is not None:
            nodes.append(node)
            shape = node.outputs[0]
    return ModelGraph(
        name=name,
        source="gpumemnet",
        nodes=tuple(nodes),
        producers=tuple((index - 1,) for index in range(len(nodes))),
        inputs=(("input", first),),
        parameter_count=sum(layer.weights for layer in layers),
    )


def _node(layer: NetworkLayer, shape: Shape, following: NetworkLayer | None, first: Shape) -> Node | None:
    if layer.kind == "linear":
        width = layer.weights // layer.outputs - 1
        return _make_node("Gemm", (-1, width), (-1, layer.outputs), ((width, layer.outputs), (layer.outputs,)))
    if layer.kind == "conv2d":
        return _convolution(layer, shape, following, first)
    if layer.kind in ("batchnorm2d", "batch_normalization"):
        return _make_node("BatchNormalization", shape, shape, ((shape[1],), (shape[1],)))
    if layer.kind == "adaptive_avg_pool2d":
        return _make_node("GlobalAveragePool", shape, (-1, layer.outputs), ())
    if layer.kind in _ELEMENTWISE:
        return _make_node(_ELEMENTWISE[layer.kind], shape, shape, ((1,),) if layer.kind == "PReLU" else ())
    return None


def _make_node(op_type: str, before: Shape, after: Shape, parameters: tuple[Shape, ...]) -> Node:
    return Node(op_type=op_type, inputs=(before,), outputs=(after,), parameters=parameters)


def _convolution(layer: NetworkLayer, shape: Shape, following: NetworkLayer | None, first: Shape) -> Node | None:
    """Return a convolution of 3 x 3 or 1 x 1: image sides are the input's, halved so often that the counts come out."""
    best: tuple[tuple[bool, ...], int, int, int] | None = None
    for halvings in range(_MAXIMUM_HALVINGS):
        side = -(-first[2] // 2**halvings)
        channels, rest = divmod(layer.outputs, side * side)
        if rest or channels == 0 or layer.weights % channels:
            continue
        if following and following.kind == "batchnorm2d" and following.weights != 2 * channels:
            continue
        length = layer.weights // channels - 1
        rank = (length in (shape[1] * _KERNEL, shape[1]), side == shape[2], side <= shape[2])
        if best is None or rank > best[0]:
            best = (rank, side, channels, length)
    if best is None:
        return None
    _, side, channels, length = best
    kernel = 3 if length % _KERNEL == 0 and length != shape[1] else 1
    before = (-1, length // kernel**2, shape[2], shape[3])
    return _make_node("Conv", before, (-1, channels, side, side), ((channels, before[1], kernel, kernel), (channels,)))


GPU = "a100-sxm4-40gb"
"""GPUMemNet's machine has an A100 of 40 GB."""
UTILIZATION, SM = 0, 1
"""Columns of what is measured."""


class Rows(NamedTuple):
    """What is learned from: features, Yeung's features, the node times alone, the measured percents, the groups.

    Attributes:
        steps: Seconds in which kernels run, seconds of the step, and the kernels after which the host leaves gaps.
    """

    features: FloatArray
    yeung: FloatArray
    roofline: FloatArray
    steps: FloatArray
    measured: FloatArray
    kinds: tuple[str, ...]
    architectures: tuple[str, ...]
    left_out: dict[str, int]


def rows_of(data: DataFolder) -> Rows:
    """Return all rows with their features."""
    loaded = load(data)
    features, yeung, roofline, steps = [], [], [], []
    cases = [*random_cases(loaded), *_own(data)]
    for case in cases:
        analysis = WorkloadAnalysis(case.graph, case.workload)
        timing = analysis.timing([case.gpu])
        features.append(features_of(analysis.work, timing)[0])
        roofline.append(100.0 * np.array([timing.busy_s[0], timing.sm_s[0]]) / timing.step_s[0])
        gaps = float(analysis.kernels.counts.sum()) if case.workload.mode == "train" else 0.0
        steps.append((timing.busy_s[0], timing.step_s[0], gaps))
        yeung.append(yeung_features(case.graph, case.workload.batch_size))
    return Rows(
        np.array(features),
        np.array(yeung),
        np.array(roofline),
        np.array(steps),
        np.array([case.measured for case in cases]),
        tuple(case.kind for case in cases),
        tuple(f"{case.kind} {case.architecture}" for case in cases),
        loaded.left_out,
    )


def random_count(rows: Rows) -> int:
    """Return how many rows are of GPUMemNet's random networks."""
    return sum(kind != "real" for kind in rows.kinds)


def own_sources(data: DataFolder) -> Counter[str]:
    """Return how many rows are of each campaign of gpusage profile."""
    return Counter(run.source for run in profiled(data).runs if _has_activity(run))


def _has_activity(run: ProfiledRun) -> bool:
    return run.is_alone and {"gpu_utilization", "sm_activity"} <= run.figures.keys()


class Case(NamedTuple):
    """One measured run; percents of utilization and SM activity."""

    kind: str
    architecture: str
    graph: ModelGraph
    workload: Workload
    gpu: Gpu
    measured: tuple[float, float]


def random_cases(loaded: Loaded) -> Iterator[Case]:
    """Yield the runs of GPUMemNet's random networks."""
    gpu = builtin_catalogue().find(GPU)
    for network in loaded.networks:
        workload = Workload(batch_size=network.batch_size, optimizer="adam")
        measured = (network.gpu_utilization, network.sm_activity)
        yield Case(network.kind, network.architecture, network.graph, workload, gpu, measured)


def _own(data: DataFolder) -> Iterator[Case]:
    """Yield the runs of gpusage profile; a family of models is what a type of architecture is elsewhere."""
    for run in profiled(data).runs:
        if _has_activity(run):
            measured = (100.0 * run.figures["gpu_utilization"], 100.0 * run.figures["sm_activity"])
            yield Case("real", run.family, run.graph, run.workload, run.gpu, measured)
