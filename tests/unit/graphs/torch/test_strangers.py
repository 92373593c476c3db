"""Modules of other people: recurrences, masks, bags and boxes that PyTorch's meta device does not take by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from gpusage.graphs.torch.libraries import model_error
from gpusage.graphs.torch.module import graph_from_module
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Workload

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


class Calls(nn.Module):
    """A module whose forward is the given function, beside parts of its own."""

    def __init__(self, function: Callable[..., object], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs: object) -> object:
        """Call the function with the parts and the inputs."""
        return self.function(*self.parts, *inputs)


def flop_of(graph: ModelGraph, batch_size: int) -> float:
    lowering = WorkloadAnalysis(graph, Workload(batch_size=batch_size)).lowering
    return float((lowering.flop * lowering.structure.counts).sum())


def test_a_weight_normalised_convolution_counts_its_work() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 16, 3, padding=1))
    graph = graph_from_module(module, (torch.zeros(2, 8, 100),))
    (convolution,) = [node for node in graph.nodes if node.op_type == "Conv"]
    assert convolution.inputs[1] == (16, 8, 3)
    assert flop_of(graph, 4) >= 2 * 4 * 16 * 100 * 8 * 3


def test_a_long_recurrence_is_one_node_a_layer() -> None:
    """PyTorch's meta kernel would go through 20,000 steps of two layers in both directions."""
    graph = graph_from_module(nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True), (torch.zeros(2, 20_000, 8),))
    assert [node.op_type for node in graph.nodes] == ["LSTM", "LSTM"]
    assert graph.nodes[1].inputs == ((-1, 20_000, 32),)


def test_a_recurrence_with_projections_counts_them() -> None:
    graph = graph_from_module(nn.LSTM(8, 16, 2, batch_first=True, proj_size=4), (torch.zeros(2, 10, 8),))
    assert [node.op_type for node in graph.nodes] == ["LSTM", "MatMul", "LSTM", "MatMul"]
    # 10 steps: four gates of 16 states from 8 inputs (then 4) and 4 narrow states, and 4 narrow states from 16
    assert flop_of(graph, 1) == 2 * 10 * (64 * (8 + 4) + 4 * 16 + 64 * (4 + 4) + 4 * 16)


def test_packed_sequences_count_as_if_all_were_long() -> None:
    def packed(layer: nn.LSTM, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        row = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(layer(row)[0], batch_first=True)[0]

    lengths = torch.tensor([10, 7, 3])
    graph = graph_from_module(Calls(packed, nn.LSTM(8, 16, batch_first=True)), (torch.zeros(3, 10, 8), lengths))
    (layer,) = [node for node in graph.nodes if node.op_type == "LSTM"]
    assert layer.inputs == ((10, -1, 8),)
    assert graph.fixed_batch_size is None


@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_have_their_batch_where_they_were_packed(batch_first: bool) -> None:  # a parameter
    def packed(layer: nn.LSTM, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        row = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=batch_first, enforce_sorted=False)
        return layer(row)[1][0]

    sizes = (3, 10, 8) if batch_first else (10, 3, 8)
    graph = graph_from_module(Calls(packed, nn.LSTM(8, 16)), (torch.zeros(sizes), torch.tensor([10, 7, 3])))
    assert graph.inputs[0][1] == ((-1, 10, 8) if batch_first else (10, -1, 8))
    (layer,) = [node for node in graph.nodes if node.op_type == "LSTM"]
    assert layer.inputs == ((10, -1, 8),)


def test_a_bag_of_embeddings_reads_each_of_its_rows() -> None:
    module = nn.EmbeddingBag(1000, 16, mode="sum")
    graph = graph_from_module(module, (torch.zeros(2, 30, dtype=torch.int64),))
    rows = [node for node in graph.nodes if node.op_type == "Gather"]
    assert [node.outputs for node in rows] == [((-30, 16),)]
    assert graph.nodes[-1].outputs == ((-1, 16),)


def test_what_is_chosen_by_values_is_all_of_it_and_said() -> None:
    module = Calls(lambda layer, rows: layer(rows)[rows > 0].sum(), nn.Linear(8, 8))
    graph = graph_from_module(module, (torch.zeros(2, 8),))
    assert dict(graph.unknown_op_types) == {"NonZero": 1}
    assert any("depends on values" in note for note in graph.notes)


def test_routed_experts_in_a_loop_are_predicted_with_all_tokens() -> None:
    def routed(gate: nn.Module, expert: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        chosen = gate(rows).topk(1).indices
        places, _ = torch.where(chosen == 0)
        return torch.zeros_like(rows).index_add(0, places, expert(rows[places]))

    graph = graph_from_module(Calls(routed, nn.Linear(8, 2), nn.Linear(8, 8)), (torch.zeros(4, 8),))
    assert [node.inputs[0] for node in graph.nodes if node.op_type == "Gemm"] == [(-1, 8), (-1, 8)]
    assert "NonZero" in dict(graph.unknown_op_types)


def test_the_batch_is_that_of_features_not_that_of_single_numbers() -> None:
    """A diffusion model's time may come first, one for all samples."""
    module = Calls(lambda layer, time, rows: layer(rows) * time, nn.Linear(8, 4))
    graph = graph_from_module(module, (torch.zeros(1), torch.zeros(16, 8)))
    assert graph.inputs[1][1] == (-1, 8)
    assert graph.fixed_batch_size is None


def test_usual_operators_have_rules() -> None:
    def many(layer: nn.Module, rows: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        gated = nn.functional.glu(layer(rows))
        below = torch.tril_indices(4, 4, -1)
        lost = nn.functional.cross_entropy(gated, classes) + nn.functional.mse_loss(gated, rows[:, :4])
        return torch.cdist(gated, gated)[:, below[0]].sinh().sum() + lost

    inputs = (torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))
    graph = graph_from_module(Calls(many, nn.Linear(8, 8)), inputs)
    assert graph.unknown_op_types == ()
    assert Counter(node.op_type for node in graph.nodes)["Sinh"] == 1


@pytest.mark.parametrize(
    ("layer", "batch_sizes"),
    [
        (nn.LSTM(8, 16), (5, -1, 8)),
        (nn.LSTM(8, 16, batch_first=True), (-1, 4, 8)),
        (nn.TransformerEncoderLayer(8, 2), (5, -1, 8)),
    ],
)
def test_a_layer_that_takes_sequences_first_says_which_size_is_the_batch(
    layer: nn.Module, batch_sizes: tuple[int, ...]
) -> None:
    graph = graph_from_module(layer, (torch.zeros(5, 4, 8),))
    assert graph.inputs[0][1] == batch_sizes
    assert any("sequences first" in note for note in graph.notes) == (batch_sizes[1] == -1)


def test_tokens_of_a_language_model_that_takes_sequences_first() -> None:
    """As in PyTorch's own example of a word language model: (steps, samples)."""
    module = Calls(lambda table, layer, tokens: layer(table(tokens))[0], nn.Embedding(100, 8), nn.GRU(8, 16))
    graph = graph_from_module(module, (torch.zeros(35, 20, dtype=torch.int64),))
    assert graph.inputs[0][1] == (35, -1)


def test_a_layer_behind_a_turned_sequence_keeps_the_first_size() -> None:
    module = Calls(lambda layer, rows: layer(rows.transpose(0, 1))[0], nn.LSTM(8, 16))
    graph = graph_from_module(module, (torch.zeros(5, 4, 8),))
    assert graph.inputs[0][1] == (-1, 4, 8)
    assert graph.notes == ()


def test_pictures_in_a_list_are_a_batch_of_so_many() -> None:
    """Detection models of torchvision take pictures of their own sizes."""

    def each(layer: nn.Module, pictures: list[torch.Tensor]) -> list[torch.Tensor]:
        return [layer(picture[None]) for picture in pictures]

    pictures = [torch.zeros(3, 32, 32), torch.zeros(3, 32, 32)]
    graph = graph_from_module(Calls(each, nn.Conv2d(3, 8, 3)), (pictures,))
    assert graph.fixed_batch_size == 2
    assert [node.inputs for node in graph.nodes if node.op_type == "Conv"] == [((1, 3, 32, 32),)] * 2


def test_one_sample_without_a_batch_is_one() -> None:
    graph = graph_from_module(nn.Linear(8, 4), (torch.zeros(8),))
    assert graph.fixed_batch_size == 1


def test_what_each_gpu_runs_is_read_of_a_module_for_several() -> None:
    assert graph_from_module(nn.DataParallel(nn.Linear(8, 4)), (torch.zeros(2, 8),)).parameter_count == 36


def test_a_module_that_looks_at_values_is_told_what_to_do() -> None:
    module = Calls(lambda layer, rows: layer(rows) if rows.mean() > 0 else rows, nn.Linear(8, 8))
    with pytest.raises(GraphError, match=r"must take the same way .*Hand over the part that does not look at values"):
        graph_from_module(module, (torch.zeros(2, 8),))


def test_a_lazy_layer_is_to_be_called_first() -> None:
    with pytest.raises(GraphError, match=r"must know the shapes of all its parameters; .*Call it once"):
        graph_from_module(nn.LazyLinear(4), (torch.zeros(2, 8),))


def test_a_package_that_cannot_be_imported_is_told_by_what_really_failed() -> None:
    error = ImportError("Failed to import transformers.models.llama")
    error.__cause__ = OSError("libcudart.so.12: cannot open shared object file")
    reported = str(model_error("hf:llama", "be one that its library can build", error))
    assert "must be one whose packages can be imported; got: libcudart.so.12" in reported
    assert reported.endswith("Install or update that package.")
