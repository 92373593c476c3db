"""Random perceptrons that GPUMemNet trained with Adam: graphs made of their layers, for a test that nothing fits.

A row lists its layers as ``('linear', activations, parameters)``; the input's width stands in the row's name.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

import numpy as np

from gpusage.learning.scores import score
from gpusage.learning.tables import DataFolder
from gpusage.learning.targets import ScoreTable
from gpusage.predictors.memory import predict_memory
from gpusage_hooks.types import Gpu, ModelGraph, Node, Shape, Workload
from gpusage_hooks.units import MIB

FILES = ("gpumemnet_mlp_step1.csv", "gpumemnet_mlp_step2.csv")
SAMPLE_STEP = 10
"""Every tenth row is enough to score by, and takes seconds."""
_OPERATORS = {
    "batch_normalization": "BatchNormalization",
    "dropout": "Dropout",
    "Softmax": "Softmax",
    "ReLU": "Relu",
    "LeakyReLU": "LeakyRelu",
    "PReLU": "PRelu",
    "ELU": "Elu",
    "SELU": "Selu",
    "GELU": "Gelu",
    "SiLU": "Swish",
    "Swish": "Swish",
    "Mish": "Mish",
    "Softplus": "Softplus",
    "Tanh": "Tanh",
    "Sigmoid": "Sigmoid",
}


def perceptron_graph(config: str, layers: str) -> ModelGraph:
    """Return the graph of one row.

    Args:
        config: The row's name, ``input:2346_output:197_...``.
        layers: Its list of layers, as text.
    """
    found = re.search(r"input:(\d+)", config)
    width = int(found.group(1)) if found else 1
    inputs: tuple[tuple[str, Shape], ...] = (("input", (-1, width)),)
    nodes = []
    count = 0
    for name, activations, parameters in ast.literal_eval(layers):
        weights: tuple[Shape, ...] = ()
        if name == "linear":
            weights = ((activations, width), (activations,))
        elif parameters:
            weights = tuple((activations,) for _ in range(parameters // activations))
        nodes.append(_node(name, width, activations, weights))
        width, count = activations, count + parameters
    producers = tuple((index - 1,) for index in range(len(nodes)))
    return ModelGraph(
        name="perceptron", source=config, nodes=tuple(nodes), producers=producers, inputs=inputs, parameter_count=count
    )


@lru_cache(maxsize=4096)
def _node(name: str, width: int, activations: int, weights: tuple[Shape, ...]) -> Node:
    op_type = "Gemm" if name == "linear" else _OPERATORS.get(name, "Relu")
    return Node(op_type=op_type, inputs=((-1, width),), outputs=((-1, activations),), parameters=weights)


def perceptron_table(data: DataFolder) -> ScoreTable:
    """Return how well the shipped predictor does on them."""
    lines: list[tuple[str | float | None, ...]] = []
    for file in FILES:
        if file not in data:
            continue
        rows = data.read(file).iloc[::SAMPLE_STEP]
        measured = rows["max_gpu_memory_MiB"].to_numpy(dtype=np.float64) * MIB
        ends = [_predicted(*row) for row in rows[["config", "layers_type_activations_params", "batch_size"]].to_numpy()]
        low, point, high = np.array(ends).T
        figures = score(measured, point, low, high)
        constant = score(measured, np.full(len(measured), np.median(measured)))
        cells = (figures.mape, figures.median, figures.within_10, float((measured > high).mean()), constant.mape)
        lines.append((file, float(len(measured)), *(100 * cell for cell in cells)))
    return ScoreTable(
        title="Memory: random perceptrons trained with Adam, never fitted",
        columns=("file", "rows", "MAPE %", "median %", "within 10 %", "above high %", "MAPE % of the median"),
        rows=tuple(lines),
        notes=(f"Every {SAMPLE_STEP}th row; the context of an A100 is read off their least peak.",),
    )


def _predicted(config: str, layers: str, batch_size: int) -> tuple[float, float, float]:
    workload = Workload(batch_size=int(batch_size), optimizer="adam")
    interval = predict_memory(perceptron_graph(config, layers), workload, [_a100()])[0]
    return interval.low, interval.value, interval.high


@lru_cache(maxsize=1)
def _a100() -> Gpu:
    from gpusage.devices.catalogue import builtin_catalogue  # noqa: PLC0415 - reads a file

    return builtin_catalogue().find("a100")
