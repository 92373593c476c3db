"""A live PyTorch module becomes a graph by running on shapes alone."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import pytest

from gpusage.graphs.torch.libraries import import_library
from gpusage.graphs.torch.module import ONES_NOTE, graph_from_module
from gpusage.graphs.torch.recording import SEQUENCES_FIRST_NOTE
from gpusage.predictors.work.lowering import forward_flop
from gpusage.predictors.work.operators import SavedTensors, rule_of
from gpusage_hooks.errors import GraphError

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


class Tied(nn.Module):
    """An embedding whose table is also the projection, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.projection = nn.Linear(8, 100, bias=False)
        self.projection.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        return self.projection(self.embedding(tokens))


class Built(nn.Module):
    """A module whose forward is the given function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: object) -> object:
        """Call the function."""
        return self.function(*inputs)


def test_a_perceptron_is_its_layers_for_any_batch() -> None:
    graph = graph_from_module(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), (torch.zeros(7, 16),))
    assert [node.op_type for node in graph.nodes] == ["Gemm", "Relu", "Gemm"]
    assert graph.inputs == (("input", (-1, 16)),)
    assert [node.outputs for node in graph.nodes] == [((-1, 32),), ((-1, 32),), ((-1, 4),)]
    assert graph.nodes[0].parameters == ((32, 16), (32,))
    assert graph.producers == ((-1,), (0,), (1,))
    assert graph.parameter_count == 16 * 32 + 32 + 32 * 4 + 4
    assert graph.fixed_batch_size is None


@pytest.mark.parametrize(
    ("mode", "attributes"),
    [("bilinear", (("mode", "linear"),)), ("bicubic", (("mode", "cubic"),)), ("nearest", ())],
)
def test_an_interpolation_says_how_it_goes(mode: str, attributes: tuple[tuple[str, str], ...]) -> None:
    module = Built(lambda picture: nn.functional.interpolate(picture, scale_factor=2, mode=mode))
    (resize,) = graph_from_module(module, (torch.zeros(2, 3, 8, 8),)).nodes
    assert (resize.op_type, resize.attributes) == ("Resize", attributes)


def test_patches_are_cut_out_and_put_together_by_copies() -> None:
    module = nn.Sequential(nn.Unfold(2, stride=2), nn.Fold(8, 2, stride=2))
    graph = graph_from_module(module, (torch.zeros(2, 3, 8, 8),))
    assert [node.op_type for node in graph.nodes] == ["Im2Col", "Col2Im"]


@pytest.mark.parametrize("name", ["leaky_relu", "elu", "celu", "selu", "rrelu"])
@pytest.mark.parametrize("in_place", [False, True])
def test_an_activation_in_place_keeps_what_pytorch_keeps_of_it(name: str, *, in_place: bool) -> None:
    function = getattr(nn.functional, name)
    layer = Built(lambda x: function(x + 1, inplace=in_place))
    keeps_result = hasattr(layer(torch.ones(2, 4, requires_grad=True)).grad_fn, "_saved_result")
    graph = graph_from_module(layer, (torch.ones(2, 4),))
    assert keeps_result == in_place == graph.nodes[-1].op_type.endswith("InPlace")
    assert (rule_of(graph.nodes[-1]).saves == SavedTensors.OUTPUT) == keeps_result


def test_a_weight_used_twice_is_counted_once() -> None:
    graph = graph_from_module(Tied(), (torch.zeros(2, 5, dtype=torch.int64),))
    assert graph.parameter_count == 800
    assert [node.op_type for node in graph.nodes] == ["Gather", "MatMul"]


def test_a_convolution_carries_what_changes_its_cost() -> None:
    module = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4)
    graph = graph_from_module(module, (torch.zeros(2, 8, 10, 10),))
    expected = {"dilations": (1, 1), "group": 4, "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}
    assert dict(graph.nodes[0].attributes) == expected
    assert graph.nodes[0].outputs == ((-1, 16, 5, 5),)


def test_a_stack_of_recurrent_layers_counts_each_gate_once() -> None:
    graph = graph_from_module(nn.LSTM(8, 16, num_layers=2, batch_first=True), (torch.zeros(2, 5, 8),))
    # 2 FLOP x 5 steps x 4 gates x 16 units x (inputs + 16 recurrent), inputs 8 then 16
    assert sum(node.op_type == "LSTM" for node in graph.nodes) == 2
    assert forward_flop(graph) == 2 * 5 * 4 * 16 * ((8 + 16) + (16 + 16))


def test_attention_is_two_products_around_a_softmax() -> None:
    module = Built(nn.functional.scaled_dot_product_attention)
    graph = graph_from_module(module, tuple(torch.zeros(2, 4, 10, 8) for _ in range(3)))
    assert Counter(node.op_type for node in graph.nodes) == {"Transpose": 1, "MatMul": 2, "Softmax": 1}
    # each product: 2 FLOP x 4 heads x 10 queries x 10 keys x 8; the softmax's count is the predictors' affair
    assert forward_flop(graph) == pytest.approx(2 * 2 * 4 * 10 * 10 * 8, rel=0.2)


def test_what_nothing_reads_is_left_out() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        (x @ x.transpose(0, 1)).sum()
        return x + 1

    graph = graph_from_module(Built(forward), (torch.zeros(2, 4),))
    assert [node.op_type for node in graph.nodes] == ["Add"]


def test_a_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    module[2].eval()
    weight, mean = module[0].weight, module[2].running_mean
    graph_from_module(module, (torch.zeros(2, 4),))
    assert module[0].weight is weight
    assert module[2].running_mean is mean
    assert weight.device.type == "cpu"
    assert [module.training, module[1].training, module[2].training] == [True, True, False]


def test_a_module_that_counts_its_calls_counts_none_of_ours() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return super().forward(x)

    module = Counting()
    graph_from_module(module, (torch.zeros(2, 4),))
    assert module.count.tolist() == [0, 0]


class Remembering(nn.Module):
    """Keeps a mask, a table and a counter that it makes in its first run, as attention layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("positions", None)
        self.mask: torch.Tensor | None = None
        self.tables: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return masked scores."""
        if self.mask is None:
            self.mask = torch.ones(4, 4).tril()
            self.positions = torch.arange(4.0)
            self.tables[4] = torch.zeros(4)
        return self.layer(x) @ self.mask + self.positions + self.tables[4]


def test_a_module_that_keeps_a_mask_works_after_it_was_read() -> None:
    module = Remembering()
    graph_from_module(module, (torch.zeros(2, 4),))
    assert (module.mask, module.positions, module.tables) == (None, None, {})
    assert module(torch.zeros(2, 4)).device.type == "cpu"


def test_a_masks_values_are_ones_where_a_model_reads_them() -> None:
    def forward(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.relu() if mask.all() else x * mask

    graph = graph_from_module(Built(forward), (torch.zeros(5, 4), torch.zeros(5, 4, dtype=torch.int64)))
    assert [node.op_type for node in graph.nodes] == ["Relu"]
    assert graph.fixed_batch_size is None
    assert graph.notes == (ONES_NOTE,)


def test_a_masks_values_are_ones_at_one_batch_size_too() -> None:
    def forward(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.reshape(4, 6).relu() if mask.all() else x

    graph = graph_from_module(Built(forward), (torch.zeros(4, 3, 2), torch.ones(4, 3, dtype=torch.bool)))
    assert graph.fixed_batch_size == 4
    assert graph.notes == ("The batch size is fixed at 4.", ONES_NOTE)


@pytest.mark.parametrize(("weights", "inputs"), [("float32", "float16"), ("bfloat16", "float32")])
def test_inputs_are_read_in_the_type_of_the_weights_as_under_autocast(weights: str, inputs: str) -> None:
    module = nn.Conv2d(3, 4, 1).to(getattr(torch, weights))
    graph = graph_from_module(module, (torch.zeros(2, 3, 8, 8, dtype=getattr(torch, inputs)),))
    assert [node.op_type for node in graph.nodes] == ["Conv"]


def test_a_model_for_one_batch_size_says_so() -> None:
    graph = graph_from_module(Built(lambda x: x.reshape(4, 6).relu()), (torch.zeros(4, 3, 2),))
    assert graph.fixed_batch_size == 4
    assert graph.notes == ("The batch size is fixed at 4.",)
    assert graph.nodes[-1].outputs == ((4, 6),)


def test_a_model_may_look_at_values_that_follow_from_constants() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(4) < 4
        return x.relu() if mask.all() else x.exp()

    graph = graph_from_module(Built(forward), (torch.zeros(2, 4),))
    assert [node.op_type for node in graph.nodes] == ["Relu"]


def test_a_model_that_keeps_what_it_worked_out_still_follows_the_batch() -> None:
    stored: list[torch.Tensor] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        if not stored:
            stored.append(torch.arange(4).float().exp())
        return x * stored[0]

    assert graph_from_module(Built(forward), (torch.zeros(2, 4),)).fixed_batch_size is None


def test_a_mask_of_another_run_has_its_values() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.RNN(4, 4)
            self.mask: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.mask is None or len(self.mask) != len(x):
                self.mask = torch.ones(len(x), len(x)).tril()
            return self.layer(x)[0] if self.mask.any() else x

    assert SEQUENCES_FIRST_NOTE in graph_from_module(Masked(), (torch.zeros(7, 3, 4),)).notes


def test_a_model_may_view_a_tensor_that_is_no_part_of_it() -> None:
    strides = torch.tensor([8.0, 16.0])
    graph = graph_from_module(Built(lambda x: x * strides[0]), (torch.zeros(2, 4),))
    assert "Mul" in [node.op_type for node in graph.nodes]


def test_a_model_that_looks_at_its_input_is_refused_in_one_sentence() -> None:
    with pytest.raises(GraphError, match="must take the same way whatever the values of its inputs are") as caught:
        graph_from_module(Built(lambda x: x if x.sum() > 0 else -x), (torch.zeros(2, 4),))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [42, "a word", torch.zeros(2), torch.jit])
def test_what_is_no_module_is_refused(source: object) -> None:
    with pytest.raises(GraphError, match=r"must be a path, a name, a torch\.nn\.Module"):
        graph_from_module(source, (torch.zeros(2, 4),))


def test_a_module_without_example_inputs_is_refused() -> None:
    with pytest.raises(GraphError, match="must be given example inputs, batch first"):
        graph_from_module(nn.Linear(4, 4))


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(GraphError, match="Check its inputs"):
        graph_from_module(nn.Linear(4, 4), (torch.zeros(2, 5),))


def test_inputs_by_name_and_in_lists_are_named() -> None:
    module = Built(lambda pair, scale: pair[0] * scale + pair[1])
    module.forward = module.function
    graph = graph_from_module(module, ([torch.zeros(2, 4), torch.zeros(2, 4)],), keywords={"scale": torch.zeros(2, 1)})
    assert graph.inputs == (("pair.0", (-1, 4)), ("pair.1", (-1, 4)), ("scale", (-1, 1)))


def test_warnings_of_a_model_stay_with_it() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("old fashioned", stacklevel=1)
        return x + 1

    assert len(graph_from_module(Built(forward), (torch.zeros(2, 4),)).nodes) == 1


def test_an_operator_without_a_rule_is_counted() -> None:
    graph = graph_from_module(Built(lambda x: torch.special.bessel_j0(x).relu()), (torch.zeros(2, 4),))
    assert graph.unknown_op_types == (("special_bessel_j0", 1),)
    assert graph.nodes[0].outputs == ((-1, 4),)


def test_a_library_that_is_not_installed_is_named() -> None:
    with pytest.raises(GraphError, match=r"Install gpusage with its extra \[torch\]"):
        import_library("no_such_library_of_gpusage")


def exported(module: nn.Module, size: int, **options: object) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), (torch.zeros(size, 4),), strict=False, **options)


def test_an_exported_program_brings_its_own_inputs() -> None:
    program = exported(nn.Linear(4, 3), 2, dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    graph = graph_from_module(program)
    assert graph.nodes[0].outputs == ((-1, 3),)
    assert graph.parameter_count == 15


def test_a_program_exported_for_one_batch_size_says_so() -> None:
    graph = graph_from_module(exported(nn.Linear(4, 3), 5))
    assert graph.fixed_batch_size == 5
    assert graph.nodes[0].outputs == ((5, 3),)
