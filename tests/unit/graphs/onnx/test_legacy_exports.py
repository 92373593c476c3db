"""Files of PyTorch's legacy exporter, made here: which of its folded constants are weights of their own."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import gpusage

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytestmark = pytest.mark.torch


def parameter_count(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> int:
    """Return how many parameters the exported *module* is read with."""
    path = folder / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is old
        torch.onnx.export(module, inputs, str(path), dynamo=False)
    return gpusage.read_model(str(path)).parameter_count


class Words(torch.nn.Module):
    """An embedding, a linear layer, and a product that gives a row for all words."""

    def __init__(self, words: int, width: int, *, is_tied: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, width)
        self.inner = torch.nn.Linear(width, width, bias=False)
        self.head = torch.nn.Linear(width, words, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a row for all words."""
        return self.head(self.inner(self.embedding(tokens)))


@pytest.mark.parametrize("words", [40, 4000])  # a matrix of at most 16 KiB is read whole, of a larger one the ends
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_tied_weight_counts_once_though_its_transpose_is_folded(tmp_path: Path, words: int, *, is_tied: bool) -> None:
    tokens = torch.zeros((2, 8), dtype=torch.int64)
    actual = parameter_count(Words(words, 32, is_tied=is_tied), (tokens,), tmp_path)
    assert actual == 32 * 32 + words * 32 * (1 if is_tied else 2)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_weight_of_one_value_tells_nothing_of_a_tie(tmp_path: Path, value: float) -> None:
    module = Words(40, 32, is_tied=False)
    for weight in (module.embedding.weight, module.head.weight):
        torch.nn.init.constant_(weight, value)
    assert parameter_count(module, (torch.zeros((2, 8), dtype=torch.int64),), tmp_path) == 32 * 32 + 2 * 40 * 32


class Messages(torch.nn.Module):
    """A layer of a graph network: the sum of what each node's neighbours send, through a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, nodes: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return the nodes after one round of messages."""
        places = edge_index[1][:, None].expand(-1, 16)
        sums = torch.zeros(300, 16).scatter_add(0, places, nodes[edge_index[0]])
        return self.layer(sums + nodes)


def test_zeros_that_sums_are_scattered_to_are_no_weight(tmp_path: Path) -> None:
    nodes, edges = torch.zeros(300, 16), torch.zeros((2, 900), dtype=torch.int64)
    assert parameter_count(Messages(), (nodes, edges), tmp_path) == 16 * 16 + 16
