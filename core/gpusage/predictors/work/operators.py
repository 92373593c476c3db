"""What each operator costs and what it keeps for the backward pass: one row per ``op_type``.

Invariants:

1. A rule depends on a node and on the batch size, never on a GPU, a precision or a mode.
2. FLOP count a multiply-add as 2 and are those of the forward pass.
3. Whatever eager PyTorch does without a kernel of its own (a reshape, a transposed view) is a view here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

import numpy as np

from gpusage.predictors.arrays import IntArray
from gpusage_hooks.types import Node, Shape


class OperatorClass(IntEnum):
    """Operators that share an efficiency; the number is the index of a column."""

    CONVOLUTION = 0
    GROUPED_CONVOLUTION = 1
    PRODUCT = 2
    BATCHED_PRODUCT = 3
    ATTENTION = 4
    RECURRENT = 5
    BATCH_NORMALIZATION = 6
    NORMALIZATION = 7
    REDUCTION = 8
    ELEMENTWISE = 9
    GATHER = 10
    COPY = 11
    VIEW = 12
    UNKNOWN = 13
    OPTIMIZER = 14
    LOSS = 15


class SavedTensors(IntEnum):
    """What the backward pass needs again."""

    NOTHING = 0
    INPUTS = 1
    OUTPUT = 2
    MASK = 3
    """One byte for each element of the output, as dropout does."""
    INPUTS_AND_INDICES = 4
    """The inputs and eight bytes for each element of the output, as a maximum pool does."""


class ElementCounts(dict[Shape, int]):
    """How many elements a shape has at one batch size; each shape is counted on first use."""

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self._batch_size = batch_size

    def __missing__(self, shape: Shape) -> int:
        count = self[shape] = element_count(shape, self._batch_size)
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRule:
    """How one operator is counted; flop_per_output is used if *flop* is not given."""

    operator_class: OperatorClass
    saves: SavedTensors = SavedTensors.NOTHING
    flop: Callable[[Node, ElementCounts], int] | None = None
    flop_per_output: float = 1.0


def element_count(shape: Shape, batch_size: int) -> int:
    """Return how many elements *shape* has at *batch_size*."""
    return prod([size if size >= 0 else -size * batch_size for size in shape])


def convolution_flop(node: Node, sizes: ElementCounts) -> int:
    """Return 2 x outputs x (channels per group x kernel): the weight is ``(out, in / groups, *kernel)``.

    Of a transposed one it is 2 x inputs: its weight is ``(in, out / groups, *kernel)``.
    """
    shapes = node.inputs if node.op_type == "ConvTranspose" and node.inputs else node.outputs
    return 2 * _first_element_count(shapes, sizes) * abs(prod(convolution_weight(node)[1:]))


def product_flop(node: Node, sizes: ElementCounts) -> int:
    """Return 2 x outputs x the length of the sums: K of ``(M, K) @ (K, N)``, however the weight is laid out."""
    outputs = 2 * _first_element_count(node.outputs, sizes)
    if node.parameters and len(node.parameters[0]) > 1 and node.outputs and node.outputs[0]:
        weight = node.parameters[0]
        return outputs * (weight[-2] if node.outputs[0][-1] == weight[-1] else weight[-1])
    return outputs * (sizes[node.inputs[0][-1:]] if node.inputs else 1)


def attention_flop(node: Node, sizes: ElementCounts) -> int:
    """Return 4 x query elements x keys: scores and their sum over the values."""
    if len(node.inputs) < 2:  # query and key
        return 4 * _first_element_count(node.outputs, sizes)
    query, keys, *_ = node.inputs
    return 4 * sizes[query] * sizes[keys[-2:-1] if len(keys) > 1 else ()]


def recurrent_flop(node: Node, sizes: ElementCounts) -> int:
    """Return 2 x samples x time steps x the weights of all gates."""
    samples = sizes[node.inputs[0][:-1]] if node.inputs else 0
    return 2 * samples * sum([prod(weight) for weight in node.parameters[:2]])


def _first_element_count(shapes: tuple[Shape, ...], sizes: ElementCounts) -> int:
    return sizes[shapes[0]] if shapes else 0


def convolution_weight(node: Node) -> Shape:
    """Return a convolution's weight; one made at every step (weight_norm) is read in addition to the true inputs."""
    weights = (*node.parameters[:1], *node.inputs[1:2])
    return max(weights, key=len, default=(1,))


def group_count(node: Node) -> int:
    """Return into how many groups a convolution parts its channels."""
    for name, groups in node.attributes:
        if name == "group":
            return groups if isinstance(groups, int) and groups > 0 else 1
    return 1


def has_narrow_groups(node: Node) -> bool:
    """Return whether a convolution's groups are too narrow for a matrix unit (depthwise and its kin)."""
    return convolution_weight(node)[1:2] < (_NARROW_CHANNELS,)


# Per group; a tensor core takes 16 numbers of half precision at a time, and a narrower group leaves it part empty.
_NARROW_CHANNELS = 16
_C, _S, _Rule = OperatorClass, SavedTensors, OperatorRule
_ELEMENTWISE_SAVING_NOTHING = (
    "Add Sub Neg Ceil Floor Round Sign Cast CastLike Not And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual "
    "IsNaN IsInf BitShift BitwiseAnd BitwiseOr BitwiseNot BitwiseXor Mod CumSum EyeLike RandomNormal RandomUniform "
    "RandomNormalLike RandomUniformLike Bernoulli Sum Mean"
)
_ELEMENTWISE_SAVING_INPUTS = (
    "Mul Div Pow Abs Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Erf Gelu FastGelu QuickGelu Silu Swish "
    "HardSwish HardSigmoid Mish Softplus Softsign Elu Selu Celu PRelu LeakyRelu ThresholdedRelu Shrink Clip Max Min "
    "BiasGelu Where"
)
_ELEMENTWISE_SAVING_OUTPUT = "Relu Sigmoid Tanh Sqrt Exp Reciprocal"
# PyTorch's derivatives of these read the result where it has overwritten the input; they are no operators of ONNX.
_IN_PLACE_SAVING_OUTPUT = "LeakyReluInPlace EluInPlace CeluInPlace SeluInPlace"
# The last two mark where a runtime for quantised models takes 8 bits: it rounds as its kernels read and write.
_VIEWS = (
    "Reshape Flatten Squeeze Unsqueeze Identity Transpose Slice Split SplitToSequence Expand Shape Size Constant "
    "ConstantOfShape Range SequenceConstruct SequenceAt QuantizeLinear DequantizeLinear"
)
_COPIES = "Concat Pad Tile DepthToSpace SpaceToDepth Roll Trilu ReverseSequence Col2Im Im2Col Upsample Resize Scatter"
_REDUCTIONS_SAVING_INPUTS = (
    "AveragePool LpPool GlobalMaxPool GlobalLpPool ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceSumSquare GridSample RoiAlign MaxRoiPool"
)
_REDUCTIONS_SAVING_NOTHING = "GlobalAveragePool ReduceMean ReduceSum ArgMax ArgMin TopK"
_NORMALIZATIONS = (
    "LayerNormalization InstanceNormalization GroupNormalization RMSNormalization SimplifiedLayerNormalization "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization LpNormalization MeanVarianceNormalization LRN"
)
NORMALIZATIONS_IN_HALF = ("LayerNormalizationInHalf", "GroupNormalizationInHalf", "RMSNormalizationInHalf")
"""As timm's ``--fast-norm`` computes them: mixed precision casts what they read to 2 bytes. No operators of ONNX."""
_ATTENTIONS = "Attention MultiHeadAttention GroupQueryAttention ScaledDotProductAttention FlashAttention"
_PRODUCTS = "MatMul Gemm FusedMatMul MatMulInteger QLinearMatMul Einsum Bilinear GroupedMatMul"
_GATHERS = "Gather GatherElements GatherND EmbeddingBag ScatterElements ScatterND OneHot NonZero Compress Unique"


def _rows(names: str, rule: OperatorRule) -> dict[str, OperatorRule]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, OperatorRule] = {
    **_rows("Conv ConvInteger QLinearConv FusedConv DeformConv ConvTranspose", _Rule(
        operator_class=_C.CONVOLUTION, saves=_S.INPUTS, flop=convolution_flop)),
    **_rows(_PRODUCTS, _Rule(operator_class=_C.PRODUCT, saves=_S.INPUTS, flop=product_flop)),
    **_rows(_ATTENTIONS, _Rule(operator_class=_C.ATTENTION, saves=_S.INPUTS, flop=attention_flop)),
    **_rows("LSTM GRU RNN", _Rule(operator_class=_C.RECURRENT, saves=_S.INPUTS, flop=recurrent_flop)),
    "BatchNormalization": _Rule(operator_class=_C.BATCH_NORMALIZATION, saves=_S.INPUTS, flop_per_output=5.0),
    **_rows(" ".join((_NORMALIZATIONS, *NORMALIZATIONS_IN_HALF)), _Rule(
        operator_class=_C.NORMALIZATION, saves=_S.INPUTS, flop_per_output=8.0)),
    **_rows("Softmax LogSoftmax Hardmax", _Rule(
        operator_class=_C.REDUCTION, saves=_S.OUTPUT, flop_per_output=5.0)),
    "MaxPool": _Rule(operator_class=_C.REDUCTION, saves=_S.INPUTS_AND_INDICES, flop_per_output=9.0),
    **_rows(_REDUCTIONS_SAVING_INPUTS, _Rule(operator_class=_C.REDUCTION, saves=_S.INPUTS, flop_per_output=9.0)),
    **_rows(_REDUCTIONS_SAVING_NOTHING, _Rule(operator_class=_C.REDUCTION, flop_per_output=9.0)),
    **_rows(_ELEMENTWISE_SAVING_NOTHING, _Rule(operator_class=_C.ELEMENTWISE)),
    **_rows(_ELEMENTWISE_SAVING_INPUTS, _Rule(operator_class=_C.ELEMENTWISE, saves=_S.INPUTS, flop_per_output=4.0)),
    **_rows(_ELEMENTWISE_SAVING_OUTPUT, _Rule(operator_class=_C.ELEMENTWISE, saves=_S.OUTPUT)),
    **_rows(_IN_PLACE_SAVING_OUTPUT, _Rule(operator_class=_C.ELEMENTWISE, saves=_S.OUTPUT, flop_per_output=4.0)),
    "Dropout": _Rule(operator_class=_C.ELEMENTWISE, saves=_S.MASK),
    **_rows(_GATHERS, _Rule(operator_class=_C.GATHER, flop_per_output=0.0)),
    **_rows(_COPIES, _Rule(operator_class=_C.COPY, flop_per_output=0.0)),
    **_rows(_VIEWS, _Rule(operator_class=_C.VIEW, flop_per_output=0.0)),
}  # fmt: skip
"""By ``op_type``; what saves what is as in PyTorch's derivatives.yaml."""
UNKNOWN_RULE = OperatorRule(operator_class=_C.UNKNOWN, saves=SavedTensors.INPUTS)
"""An operator without a rule is taken for one that reads its inputs, writes its outputs and keeps its inputs."""
OPERATORS = (*RULES, "")
"""By number; the last stands for every operator without a rule."""
_NUMBERS = {op_type: number for number, op_type in enumerate(OPERATORS)}
_UNKNOWN = len(RULES)
RULE_OF_NUMBER = (*RULES.values(), UNKNOWN_RULE)
CLASS_OF_NUMBER = np.array([rule.operator_class for rule in RULE_OF_NUMBER], dtype=np.int64)


def operator_number(op_type: str) -> int:
    """Return the index into `RULE_OF_NUMBER`, and into every column that is made from it."""
    return _NUMBERS.get(op_type, _UNKNOWN)


def class_of(node: Node) -> int:
    """Return the `OperatorClass` number of *node* by its operator alone, whatever its role."""
    return int(CLASS_OF_NUMBER[operator_number(node.op_type)])


def operator_numbers(nodes: Sequence[Node]) -> IntArray:
    """Return the `operator_number` of each of *nodes*."""
    numbers = np.empty(len(nodes), dtype=np.int64)
    for place, node in enumerate(nodes):
        numbers[place] = _NUMBERS.get(node.op_type, _UNKNOWN)
    return numbers


def rule_of(node: Node) -> OperatorRule:
    """Return the rule for *node*."""
    return RULES.get(node.op_type, UNKNOWN_RULE)
