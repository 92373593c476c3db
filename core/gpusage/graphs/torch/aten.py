"""PyTorch's aten operators put into ONNX terms: each call becomes nodes of a `Recording`, or none where it is free.

Both PyTorch readers use this module, so that a live module and a saved program give the same graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from gpusage.graphs.torch.aten_names import FREE, IN_PLACE, OP_TYPES, VIEWS
from gpusage.graphs.torch.recording import AtenCall, Recording, Rule, Tensor, functional_name, iter_tensors
from gpusage_hooks.types import Attribute

NAMES = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_MATRIX_RANK = 2
# Directions of a bidirectional layer.
_BOTH = 2


def recurrent_layer(recording: Recording, call: AtenCall) -> None:
    """Record a stack of recurrent layers as one node each, with ONNX's layout of the weights."""
    op_type = {"lstm": "LSTM", "gru": "GRU"}.get(call.name, "RNN")
    source, directions = _unpacked(recording, call), direction_count(call.arguments)
    attributes: dict[str, Attribute] = {
        "direction": "bidirectional" if directions == _BOTH else "forward",
        "layout": int(call.arguments.get("batch_first") is True),
    }

    for layer, (kernel, inner, *projections) in enumerate(_weights(call, directions)):
        shape = (*source.shape[:-1], directions * inner.shape[1])
        output = Tensor(key=(call.outputs[0].key, layer), shape=shape, element_type=call.outputs[0].element_type)
        attributes["hidden_size"] = inner.shape[1]
        shapes = [(directions, *kernel.shape), (directions, *inner.shape)]
        if call.arguments.get("has_biases") is not False:
            shapes.append((directions, 2 * kernel.shape[0]))
        parameters = [Tensor(key=(kernel.key, position), shape=one) for position, one in enumerate(shapes)]
        recording.add(op_type, (source, *parameters), (output,), attributes)
        for weight in projections:  # of each direction: proj_size makes each state narrower
            states = replace(output, shape=(*shape[:-1], weight.shape[1]))
            output = replace(output, key=(weight.key, layer))
            narrow = replace(output, shape=(*shape[:-1], weight.shape[0]))
            recording.add("MatMul", (states, replace(weight, shape=weight.shape[::-1])), (narrow,))
        source = output

    for tensor in call.outputs:
        recording.alias(source, tensor)


def recurrent_cell(recording: Recording, call: AtenCall) -> None:
    """Record a recurrent cell as a layer that reads sequences of one step and the previous state."""
    source = call.tensors()[0]
    step = replace(source, key=("step", source.key), shape=(1, *source.shape))
    recording.alias(source, step)
    others = iter_tensors([call.arguments.get(name) for name in ("w_ih", "w_hh", "b_ih", "b_hh", "hx")])
    attributes: dict[str, Attribute] = {"direction": "forward", "hidden_size": call.outputs[0].shape[-1], "layout": 0}

    recording.add(call.name.split("_")[0].upper(), (step, *others), call.outputs, attributes)


def direction_count(arguments: Mapping[str, Any]) -> int:
    """Return 2 for a bidirectional recurrent layer, else 1, from the *arguments* of its operator."""
    return _BOTH if arguments.get("bidirectional") is True else 1


def _unpacked(recording: Recording, call: AtenCall) -> Tensor:
    """Return the input sequences; packed ones, whose samples follow each other, as if all had the maximum length."""
    source, steps = call.tensors()[0], call.tensor("batch_sizes")
    if steps is None:
        return source
    # batch_sizes has one entry a step.
    count = steps.shape[0]
    sequence = replace(source, key=("unpacked", source.key), shape=(count, source.shape[0] // count, source.shape[1]))
    recording.add("Reshape", (source,), (sequence,))
    return sequence


def _weights(call: AtenCall, directions: int) -> Iterator[list[Tensor]]:
    """Yield the matrices of each layer: for the input, for the state, and a projection for each direction."""
    matrices = [one for one in iter_tensors(call.arguments.get("params")) if len(one.shape) == _MATRIX_RANK]
    layers = max(int(call.arguments.get("num_layers", 1)), 1)
    count = len(matrices) // layers
    for start in range(0, count * layers, count):
        one = matrices[start : start + count // directions]
        yield [*one[:2], *one[2:] * directions]


def is_known(name: str) -> bool:
    """Return whether the operator *name* is free, one ONNX operator, or has a rule."""
    plain = functional_name(name)
    return plain in FREE or plain in OP_TYPES or plain in _RULES


def record(recording: Recording, call: AtenCall) -> None:
    """Add the nodes of *call* to *recording*; an operator without a rule is one unknown node."""
    if not call.outputs:
        return

    name = functional_name(call.name)
    if name in _RULES:
        _RULES[name](recording, call)
    elif name in FREE:
        source = call.tensors()[0]
        if source.element_type == call.outputs[0].element_type:
            recording.alias(source, call.outputs[0])
        else:
            recording.add("Cast", (source,), call.outputs)
    elif name in VIEWS:
        _view(recording, call)
    else:
        if name not in OP_TYPES:
            recording.unknown[name] += 1
        # Written in place, some activations keep their result for the backward pass.
        op_type = IN_PLACE.get(call.name) or OP_TYPES.get(name, name)
        recording.add(op_type, call.tensors(), call.outputs, _axis(call))
    if name != call.name:
        recording.mark_in_place()


def _axis(call: AtenCall) -> dict[str, Attribute]:
    axis = call.arguments.get("dim")
    return {"axis": axis} if isinstance(axis, int) and not isinstance(axis, bool) else {}


def _view(recording: Recording, call: AtenCall) -> None:
    source = call.tensors()[0]
    if source.key in recording.producers_by_key:
        recording.add(OP_TYPES[functional_name(call.name)], (source,), call.outputs, _axis(call))
    else:
        for output in call.outputs:
            recording.alias(source, output)


def convolution(recording: Recording, call: AtenCall) -> None:
    """Record a convolution, transposed or not, with its kernel and its strides."""
    weight = call.tensors()[1]
    spatial = len(weight.shape) - 2
    # aten.convolution says it by an argument, the others by their name.
    transposed = "transpose" in call.name or call.arguments.get("transposed") is True
    attributes: dict[str, Attribute] = {
        "dilations": call.sizes("dilation", spatial, 1),
        "group": int(call.arguments.get("groups") or 1),
        "kernel_shape": weight.shape[2:],
        "strides": call.sizes("stride", spatial, 1),
    }

    if not isinstance(call.arguments.get("padding"), str):
        attributes["pads"] = call.sizes("padding", spatial, 0) * 2
    recording.add("ConvTranspose" if transposed else "Conv", call.tensors(), call.outputs, attributes)


def linear(recording: Recording, call: AtenCall) -> None:
    """Record a product with a weight: a Gemm of matrices, else a MatMul and an Add."""
    source, weight = call.tensors()[:2]
    if len(source.shape) == 2:  # ONNX's Gemm is for matrices
        recording.add("Gemm", call.tensors(), call.outputs, {"transB": 1})
        return
    transposed = replace(weight, shape=weight.shape[::-1])
    _product_and_sum(recording, (source, transposed), call.tensors()[2:], call.outputs)


def _product_and_sum(
    recording: Recording, factors: tuple[Tensor, ...], summands: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> None:
    recording.add("MatMul", factors, outputs)
    if summands:
        recording.add("Add", (outputs[0], *summands), outputs)


def product_and_summand(recording: Recording, call: AtenCall) -> None:
    """Record a product to which a tensor is added."""
    summand, *factors = call.tensors()
    if functional_name(call.name) == "addmm":
        recording.add("Gemm", (*factors, summand), call.outputs)
    else:
        _product_and_sum(recording, tuple(factors), (summand,), call.outputs)


def einsum(recording: Recording, call: AtenCall) -> None:
    """Record an Einsum with its equation."""
    recording.add("Einsum", call.tensors(), call.outputs, {"equation": str(call.arguments.get("equation", ""))})


def embedding(recording: Recording, call: AtenCall) -> None:
    """Record a Gather of rows."""
    recording.add("Gather", call.tensors()[:2], call.outputs[:1], {"axis": 0})


def embedding_bag(recording: Recording, call: AtenCall) -> None:
    """Record sums of rows as a Gather of the rows and a ReduceSum."""
    weight, indices = call.tensors()[:2]
    output = call.outputs[0]
    gathered = replace(output, key=("rows", output.key), shape=(*indices.shape, weight.shape[-1]))
    recording.add("Gather", (weight, indices), (gathered,), {"axis": 0})
    recording.add("ReduceSum", (gathered,), (output,))


def index(recording: Recording, call: AtenCall) -> None:
    """Record indexing as a Gather; a boolean mask first becomes the indices where it is true, as if all were."""
    source, *places = call.tensors()
    for number, mask in enumerate(places):
        if mask.element_type == "bool":
            places[number] = Tensor(key=("places", number, call.outputs[0].key), shape=mask.shape, element_type="int64")
            _nonzero_indices(recording, (mask,), places[number : number + 1])
    recording.add("Gather", (source, *places), call.outputs, _axis(call))


def nonzero(recording: Recording, call: AtenCall) -> None:
    """Record a NonZero."""
    _nonzero_indices(recording, call.tensors(), call.outputs)


def where(recording: Recording, call: AtenCall) -> None:
    """Record ``where`` of one argument, which is NonZero, or of three."""
    if len(call.arguments) == 1:
        nonzero(recording, call)
    else:
        recording.add("Where", call.tensors(), call.outputs)


def _nonzero_indices(recording: Recording, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Record a NonZero, whose size depends on values: all are taken as nonzero, and the operator as unknown."""
    recording.unknown["NonZero"] += 1
    recording.add("NonZero", tensors, outputs)


def batch_normalization(recording: Recording, call: AtenCall) -> None:
    """Record a BatchNormalization; the running statistics that it also returns cost nothing."""
    recording.add("BatchNormalization", call.tensors(), call.outputs[:1])


def maximum_or_minimum(recording: Recording, call: AtenCall) -> None:
    """Record ``max`` of two tensors, or of one along an axis."""
    op_type = {"max": "Max", "min": "Min"}[functional_name(call.name)]
    recording.add(op_type if len(call.tensors()) > 1 else f"Reduce{op_type}", call.tensors(), call.outputs, _axis(call))


def pooling(recording: Recording, call: AtenCall) -> None:
    """Record a pooling; without a stride, windows do not overlap."""
    op_type = "MaxPool" if "max" in call.name else "AveragePool"
    spatial = 1 if "1d" in call.name else 3 if "3d" in call.name else 2
    kernel = call.sizes("kernel_size", spatial, 1)
    stride = call.sizes("stride", spatial, 0) if call.arguments.get("stride") else kernel
    attributes: dict[str, Attribute] = {
        "kernel_shape": kernel,
        "pads": call.sizes("padding", spatial, 0) * 2,
        "strides": stride,
    }

    recording.add(op_type, call.tensors(), call.outputs, attributes)


def interpolation(recording: Recording, call: AtenCall) -> None:
    """Record a Resize, whose cost depends on its mode."""
    mode = "cubic" if "cubic" in call.name else "linear"
    recording.add("Resize", call.tensors()[:1], call.outputs, {"mode": mode})


def adaptive_pooling(recording: Recording, call: AtenCall) -> None:
    """Record a pooling to a given size: a global one, or one whose windows make that size."""
    source, output = call.tensors()[0], call.outputs[0]
    op_type = "MaxPool" if "max" in call.name else "AveragePool"
    spatial = 1 if "1d" in call.name else 3 if "3d" in call.name else 2
    if prod(output.shape[-spatial:]) == 1:
        recording.add(f"Global{op_type}", (source,), call.outputs)
        return

    kernel = tuple(-(-size // out) for size, out in zip(source.shape[-spatial:], output.shape[-spatial:], strict=True))
    recording.add(op_type, (source,), call.outputs, {"kernel_shape": kernel, "strides": kernel})


def attention(recording: Recording, call: AtenCall) -> None:
    """Record attention as ONNX exporters write it: two products with a softmax between."""
    query, key, value = call.tensors()[:3]
    mask = call.tensor("attn_mask") or call.tensor("attn_bias")
    output = call.outputs[0].key
    scores = replace(query, key=("scores", output), shape=(*query.shape[:-1], key.shape[-2]))
    transposed = replace(key, key=("turned", output), shape=(*key.shape[:-2], key.shape[-1], key.shape[-2]))

    recording.add("Transpose", (key,), (transposed,))
    _product_and_sum(recording, (query, transposed), () if mask is None else (mask,), (scores,))
    recording.add("Softmax", (scores,), (scores,), {"axis": -1})
    recording.add("MatMul", (scores, value), call.outputs[:1])


_GROUPS: dict[str, Rule] = {
    "conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d": convolution,
    "linear": linear,
    "addmm baddbmm addmv addbmm": product_and_summand,
    "einsum bilinear tensordot": einsum,
    "embedding": embedding,
    "embedding_bag _embedding_bag _embedding_bag_forward_only": embedding_bag,
    "index index_select _unsafe_index masked_select take": index,
    "nonzero": nonzero,
    "where": where,
    "batch_norm native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit "
    "cudnn_batch_norm _batch_norm_no_update": batch_normalization,
    "max min": maximum_or_minimum,
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa "
    "_upsample_bicubic2d_aa": interpolation,
    "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool1d_with_indices max_pool3d_with_indices "
    "avg_pool1d avg_pool2d avg_pool3d": pooling,
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d": adaptive_pooling,
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu": attention,
    "lstm gru rnn_tanh rnn_relu": recurrent_layer,
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell": recurrent_cell,
}
_RULES: dict[str, Rule] = {name: rule for names, rule in _GROUPS.items() for name in names.split()}
