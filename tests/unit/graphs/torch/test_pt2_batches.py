"""Which size of a saved program's input is the batch: what its first layers make of it decides."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gpusage
from gpusage.graphs.torch.pt2 import read_model
from gpusage.graphs.torch.recording import SEQUENCES_FIRST_NOTE
from gpusage_hooks.types import ModelGraph

pytestmark = pytest.mark.torch
STEPS, SAMPLES = 5, 4


class Recurrent(torch.nn.Module):
    """A recurrent layer over sequences that stand first, or whose samples are moved behind the steps."""

    def __init__(self, kind: str, *, is_turned: bool = False, batch_first: bool = False) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(16, 32, batch_first=batch_first)
        self.is_turned = is_turned

    def forward(self, features: Any) -> Any:  # a tensor
        """Return what the layer writes at each step."""
        return self.layer(features.transpose(0, 1) if self.is_turned else features)[0]


def saved(folder: Path, module: torch.nn.Module, sizes: tuple[int, ...], free: int | None) -> ModelGraph:
    shapes = None if free is None else ({free: torch.export.Dim("batch", min=2, max=4096)},)
    path = folder / "saved.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, (torch.zeros(sizes),), dynamic_shapes=shapes), path)
    graph = read_model(str(path), {})
    assert graph is not None
    return graph


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("free", [None, 1])
def test_samples_stand_behind_the_steps_of_a_recurrent_layer(tmp_path: Path, kind: str, free: int | None) -> None:
    graph = saved(tmp_path, Recurrent(kind), (STEPS, SAMPLES, 16), free)
    assert graph.fixed_batch_size == (SAMPLES if free is None else None)
    assert graph.inputs[0][1] == (STEPS, SAMPLES if free is None else -1, 16)
    assert SEQUENCES_FIRST_NOTE in graph.notes


@pytest.mark.parametrize(
    "module", [Recurrent("LSTM", is_turned=True), Recurrent("GRU", batch_first=True)], ids=["turned", "batch first"]
)
@pytest.mark.parametrize("free", [None, 0])
def test_samples_that_stand_first_are_the_batch(tmp_path: Path, module: Recurrent, free: int | None) -> None:
    graph = saved(tmp_path, module, (SAMPLES, STEPS, 16), free)
    is_fixed = free is None and module.is_turned  # else each size begins with the batch, and is scaled
    assert graph.fixed_batch_size == (SAMPLES if is_fixed else None)
    assert graph.inputs[0][1] == (SAMPLES if is_fixed else -1, STEPS, 16)
    assert SEQUENCES_FIRST_NOTE not in graph.notes


class Attentive(torch.nn.Module):
    """Tokens, their embeddings, and a layer of attention over them; samples may be moved behind the tokens."""

    def __init__(self, *, batch_first: bool, is_turned: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
        self.is_turned = is_turned

    def forward(self, tokens: Any) -> Any:  # a tensor
        """Return what the layer makes of each token."""
        features = self.embedding(tokens.long())
        return self.layer(features.transpose(0, 1) if self.is_turned else features)


@pytest.mark.parametrize("free", [None, 1])
def test_samples_stand_behind_the_tokens_of_an_attention(tmp_path: Path, free: int | None) -> None:
    graph = saved(tmp_path, Attentive(batch_first=False), (STEPS, SAMPLES), free)
    assert graph.fixed_batch_size == (SAMPLES if free is None else None)
    assert graph.inputs[0][1] == (STEPS, SAMPLES if free is None else -1)
    assert SEQUENCES_FIRST_NOTE in graph.notes


@pytest.mark.parametrize(
    "module", [Attentive(batch_first=True), Attentive(batch_first=False, is_turned=True)], ids=["batch first", "turned"]
)
@pytest.mark.parametrize("free", [None, 0])
def test_an_attention_s_samples_that_stand_first_are_the_batch(
    tmp_path: Path, module: Attentive, free: int | None
) -> None:
    graph = saved(tmp_path, module, (SAMPLES, STEPS), free)
    assert graph.fixed_batch_size == (SAMPLES if free is None else None)
    assert SEQUENCES_FIRST_NOTE not in graph.notes


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_each_step_of_a_loop_over_a_cell_is_a_recurrence(tmp_path: Path, kind: str) -> None:
    class Loop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = getattr(torch.nn, kind)(16, 32)

        def forward(self, features: Any) -> Any:  # a tensor
            state = None
            for step in range(STEPS):
                state = self.cell(features[:, step], state)
            return state

    graph = saved(tmp_path, Loop(), (SAMPLES, STEPS, 16), 0)
    cells = [node for node in graph.nodes if node.op_type == kind.removesuffix("Cell")]
    assert [node.inputs[0] for node in cells] == [(1, -1, 16)] * STEPS
    assert [node.op_type for node in gpusage.read_model(Loop(), torch.zeros(SAMPLES, STEPS, 16)).nodes] == [
        node.op_type for node in graph.nodes
    ]
    need = gpusage.predict(graph, gpu="a100", batch_size=SAMPLES)
    assert not any("unknown" in note for note in need.notes)


@pytest.mark.parametrize("scale", [1, 255])
def test_a_picture_alone_is_one_sample(tmp_path: Path, scale: int) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 8, 3)

        def forward(self, picture: Any) -> Any:  # a tensor
            return self.layer(picture if scale == 1 else picture / scale)

    assert saved(tmp_path, Scaled(), (3, 32, 32), None).fixed_batch_size == 1
    assert gpusage.read_model(Scaled(), torch.zeros(3, 32, 32)).fixed_batch_size == 1


def test_sizes_of_an_input_are_named_without_its_batch(tmp_path: Path) -> None:
    saved(tmp_path, Recurrent("LSTM"), (STEPS, SAMPLES, 16), 1)
    graph = read_model(str(tmp_path / "saved.pt2"), {"features": (STEPS, 16)})
    assert graph is not None
    assert graph.inputs[0][1] == (STEPS, -1, 16)
