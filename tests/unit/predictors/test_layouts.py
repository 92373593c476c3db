"""In which order tensors lie: what a transposed view or a layer normalization leaves to all that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.extrapolation import GROUPED_WARNING
from gpusage.predictors.work.layouts import layouts_of
from gpusage.predictors.work.lowering import fused
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import ModelGraph, Node, Shape, Workload
from graphs import chain, node

MAP, ROWS, TOKENS = (-1, 64, 14, 14), (-1, 64, 196), (-1, 196, 64)
IMAGE, LAST = (-1, 64, 14, 14), (-1, 14, 14, 64)
HALF = Workload(batch_size=8, mode="infer", precision="fp16")


def blocks(*, class_token: bool = False) -> ModelGraph:
    """An image's patches as a sequence, and a block's normalization, product and sum."""
    count = TOKENS[1] + class_token
    tokens: Shape = (-1, count, 64)
    start = node("Concat", [TOKENS], tokens, (1, 1, 64)) if class_token else node("Identity", [TOKENS], tokens)
    nodes = [
        node("Conv", [(-1, 3, 224, 224)], MAP, (64, 3, 16, 16)),
        node("Reshape", [MAP], ROWS),
        node("Transpose", [ROWS], TOKENS),
        start,
        node("LayerNormalization", [tokens], tokens, (64,), (64,)),
        node("MatMul", [tokens], tokens, (64, 64)),
        node("Add", [tokens], tokens, (64,)),
        node("Add", [tokens, tokens], tokens),
        node("LayerNormalization", [tokens], tokens, (64,), (64,)),
    ]
    return replace(
        chain("blocks", nodes, (-1, 3, 224, 224)), producers=((-1,), (0,), (1,), (2,), (3,), (4,), (5,), (3, 6), (7,))
    )


def image(*operators: Node) -> ModelGraph:
    """An image that is normalized by its channels, and then by *operators*."""
    nodes = [
        node("Conv", [(-1, 3, 56, 56)], IMAGE, (64, 3, 4, 4)),
        node("Transpose", [IMAGE], LAST),
        node("LayerNormalization", [LAST], LAST, (64,), (64,)),
        node("Transpose", [LAST], IMAGE),
        *operators,
    ]
    return chain("image", nodes, (-1, 3, 56, 56))


def test_a_turned_sequence_is_copied_by_each_normalization_and_read_across_by_each_sum() -> None:
    assert layouts_of(blocks()).non_contiguous == {4, 7, 8}


def test_a_class_token_copies_the_sequence_once_and_for_all() -> None:
    assert not layouts_of(blocks(class_token=True)).non_contiguous


def test_the_copies_of_turned_sequences_are_work() -> None:
    turned, plain = (WorkloadAnalysis(blocks(class_token=one), HALF).kernels for one in (False, True))
    copies = turned.kind == -1
    # both normalizations copy four bytes of each number, the sum reads two of one across
    moved = 2.0 * 8 * 196 * 64 * (4 + 4 + 2)
    more = turned.traffic_bytes[copies] @ turned.counts[copies] - (
        plain.traffic_bytes[plain.kind == -1] @ plain.counts[plain.kind == -1]
    )
    assert more == pytest.approx(moved, rel=0.02)


def test_a_compiled_model_reads_turned_sequences_as_they_lie() -> None:
    assert WorkloadAnalysis(blocks(), HALF).lowering.reorder_bytes.any()
    assert not fused(WorkloadAnalysis(blocks(), replace(HALF, compile=True)).lowering).reorder_bytes.any()


def test_a_product_that_reads_a_turned_sequence_adds_its_bias_by_a_kernel() -> None:
    nodes = [
        *blocks().nodes[:3],
        node("Relu", [TOKENS], TOKENS),
        node("MatMul", [TOKENS], TOKENS, (64, 64)),
        node("Add", [TOKENS], TOKENS, (64,)),
    ]
    lowering = WorkloadAnalysis(chain("product", nodes, (-1, 3, 224, 224)), HALF).lowering
    kind = lowering.structure.kind_of_node[5]
    assert lowering.operator_class[kind] == OperatorClass.ELEMENTWISE
    assert lowering.written_bytes[kind] == 8 * 196 * 64 * 2


@pytest.mark.parametrize(
    "between",
    [
        (),
        (node("Gelu", [IMAGE], IMAGE),),
        (node("BatchNormalization", [IMAGE], IMAGE, (64,), (64,), (64,), (64,)),),
        (node("Concat", [IMAGE], IMAGE),),
        (node("Conv", [IMAGE], IMAGE, (64, 1, 7, 7), group=64),),
    ],
)
def test_channels_stay_side_by_side_behind_a_layer_normalization(between: tuple[Node, ...]) -> None:
    graph = image(*between, node("Conv", [IMAGE], IMAGE, (64, 64, 1, 1)))
    last = len(graph.nodes) - 1
    assert last in layouts_of(graph).channels_last
    lowering = WorkloadAnalysis(graph, HALF).lowering
    kind = lowering.structure.kind_of_node[last]
    assert lowering.written_bytes[kind] == 8 * 64 * 14 * 14 * 2


def test_other_convolutions_turn_what_they_read_and_write_in_half_precision_alone() -> None:
    graph = chain("plain", [node("Conv", [IMAGE], IMAGE, (64, 64, 1, 1))], IMAGE)
    assert not layouts_of(graph).channels_last
    half, full = (WorkloadAnalysis(graph, replace(HALF, precision=one)).lowering for one in ("fp16", "fp32"))
    assert (half.traffic_factor[0], full.traffic_factor[0]) == (3, 1)
    assert half.read_bytes[0] == half.written_bytes[0] == 8 * 64 * 14 * 14 * 2


def test_with_channels_last_no_convolution_of_images_turns_anything() -> None:
    nodes = [
        node("Conv", [IMAGE], IMAGE, (64, 64, 1, 1)),
        node("Conv", [IMAGE], IMAGE, (64, 1, 9, 9), group=64),
        node("Reshape", [IMAGE], ROWS),
        node("Conv", [ROWS], ROWS, (64, 64, 1)),
    ]
    graph = chain("both", nodes, IMAGE)
    first, last = (
        WorkloadAnalysis(graph, replace(HALF, layout=layout)).lowering for layout in ("channels_first", "channels_last")
    )
    assert first.traffic_factor.tolist() == [3, 1, 1, 3]
    assert last.traffic_factor.tolist() == [
        1,
        9,
        1,
        3,
    ]  # no kernel for 9 rows, no such order of sequences
    whole = replace(HALF, precision="fp32", layout="channels_last")
    assert set(WorkloadAnalysis(graph, whole).lowering.traffic_factor.tolist()) == {1}


@pytest.mark.parametrize(("rows", "turns"), [(3, 1), (7, 1), (9, 9)])
def test_a_large_depthwise_filter_with_channels_last_reads_its_input_for_each_of_its_rows(
    rows: int, turns: float
) -> None:
    depthwise = node("Conv", [IMAGE], IMAGE, (64, 1, rows, rows), group=64)
    graph = image(depthwise)
    lowering = WorkloadAnalysis(graph, HALF).lowering
    assert lowering.traffic_factor[lowering.structure.kind_of_node[len(graph.nodes) - 1]] == turns
    # in plain order, and in fp32, there is a kernel for it
    assert WorkloadAnalysis(chain("plain", [depthwise], IMAGE), HALF).lowering.traffic_factor.tolist() == [1]
    assert set(WorkloadAnalysis(graph, replace(HALF, precision="fp32")).lowering.traffic_factor.tolist()) == {1}


@pytest.mark.parametrize(
    ("workload", "weight", "groups", "is_starred"),
    [
        (Workload(precision="fp16", layout="channels_last"), (64, 16, 3, 3), 4, True),
        (Workload(precision="fp16", layout="channels_last"), (64, 1, 3, 3), 64, False),  # depthwise
        (Workload(precision="fp16", layout="channels_last"), (64, 64, 3, 3), 1, False),
        (Workload(precision="fp16"), (64, 16, 3, 3), 4, False),
        (Workload(precision="fp32", layout="channels_last"), (64, 16, 3, 3), 4, False),
        (replace(HALF, layout="channels_last"), (64, 16, 3, 3), 4, False),
    ],
)
def test_grouped_convolutions_that_train_with_channels_last_have_a_star(
    workload: Workload, weight: Shape, groups: int, *, is_starred: bool
) -> None:
    graph = chain("grouped", [node("Conv", [IMAGE], IMAGE, weight, group=groups)], IMAGE)
    (warnings,) = WorkloadAnalysis(graph, workload).warnings([builtin_catalogue().find("rtx-3090")])
    assert (GROUPED_WARNING in warnings) == is_starred


def test_a_transpose_to_and_fro_leaves_nothing_behind() -> None:
    nodes = [
        node("Transpose", [ROWS], TOKENS),
        node("Transpose", [TOKENS], ROWS),
        node("LayerNormalization", [ROWS], ROWS, (196,), (196,)),
    ]
    assert not layouts_of(chain("fro", nodes, ROWS)).non_contiguous


@pytest.mark.parametrize(
    ("operator", "source", "output"),
    [
        pytest.param("Transpose", (-1, 196, 64, 2), (-1, 2, 64, 196), id="a transpose of more sizes"),
        pytest.param("Transpose", TOKENS, (-1, 64), id="a transpose to fewer sizes"),
        pytest.param("Reshape", (-1, 14, 14, 64), (-1, 196, 64), id="a reshape"),
        pytest.param("Squeeze", (-1, 1), (-1,), id="a squeeze"),
        pytest.param("Add", (-1, 196, 64, 2), (-1, 196, 64, 2), id="a sum"),
    ],
)
def test_a_forged_card_whose_nodes_read_other_sizes_than_are_written_is_no_fault(
    operator: str, source: Shape, output: Shape
) -> None:
    nodes = [node("Transpose", [ROWS], TOKENS), node(operator, [source], output), node("Relu", [output], output)]
    layouts_of(chain("forged", nodes, ROWS))


def test_what_no_model_has_is_not_looked_at() -> None:
    sizes = tuple(range(2, 11))
    sums = Node(op_type="Add", inputs=(TOKENS, TOKENS), outputs=((-1,),) * 4000 + (TOKENS,))
    nodes = [node("Transpose", [ROWS], TOKENS), node("Relu", [ROWS], TOKENS), sums]
    assert not layouts_of(replace(chain("forged", nodes, ROWS), producers=((-1,), (-1,), (0, 1)))).non_contiguous
    turned = node("Transpose", [sizes], sizes[::-1])
    normalized = node("LayerNormalization", [sizes[::-1]], sizes[::-1], (2,))
    assert not layouts_of(chain("forged", [turned, normalized], sizes)).non_contiguous
