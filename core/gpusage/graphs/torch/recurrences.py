"""What PyTorch's recurrent layers cost, in ONNX terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpusage.graphs.torch.aten_call import AtenCall, tensors_in
from gpusage.graphs.torch.recording import Recording, Tensor
from gpusage_hooks.types import Attribute

NAMES = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_MATRIX_RANK = 2
_BOTH = 2
"""Directions of a layer that reads a sequence forward and backward."""


def recurrent(recording: Recording, call: AtenCall) -> None:
    """Say a stack of recurrent layers as one node each, with the weights in ONNX's arrangement."""
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
        parameters = _parameters(call, directions, kernel, inner)
        recording.add(op_type, (source, *parameters), (output,), attributes)
        for weight in projections:  # of each direction: it makes the state of each step narrower
            states = replace(output, shape=(*shape[:-1], weight.shape[1]))
            output = replace(output, key=(weight.key, layer))
            narrow = replace(output, shape=(*shape[:-1], weight.shape[0]))
            recording.add("MatMul", (states, replace(weight, shape=weight.shape[::-1])), (narrow,))
        source = output
    for tensor in call.outputs:
        recording.alias(source, tensor)


def cell(recording: Recording, call: AtenCall) -> None:
    """Say one step of a recurrent layer as a layer that reads sequences of one step, and the state before it."""
    source = call.tensors()[0]
    step = replace(source, key=("step", source.key), shape=(1, *source.shape))
    recording.alias(source, step)
    others = tensors_in([call.arguments.get(name) for name in ("w_ih", "w_hh", "b_ih", "b_hh", "hx")])
    attributes: dict[str, Attribute] = {
        "direction": "forward",
        "hidden_size": call.outputs[0].shape[-1],
        "layout": 0,
    }
    recording.add(call.name.split("_")[0].upper(), (step, *others), call.outputs, attributes)


def direction_count(arguments: Mapping[str, Any]) -> int:
    """Return in how many directions a recurrent layer reads a sequence, by the *arguments* of its operator."""
    return _BOTH if arguments.get("bidirectional") is True else 1


def _unpacked(recording: Recording, call: AtenCall) -> Tensor:
    """Return the sequence that is read; of a packed one, whose samples stand one after another, as if all were long."""
    source, steps = call.tensors()[0], call.tensor("batch_sizes")
    if steps is None:
        return source
    count = steps.shape[0]
    sequence = replace(source, key=("unpacked", source.key), shape=(count, source.shape[0] // count, source.shape[1]))
    recording.add("Reshape", (source,), (sequence,))
    return sequence


def _weights(call: AtenCall, directions: int) -> Iterator[list[Tensor]]:
    """Yield each layer's matrices: what meets the input, what meets the state, and a projection for each direction."""
    matrices = [one for one in tensors_in(call.arguments.get("params")) if len(one.shape) == _MATRIX_RANK]
    layers = max(int(call.arguments.get("num_layers", 1)), 1)
    count = len(matrices) // layers
    for start in range(0, count * layers, count):
        one = matrices[start : start + count // directions]
        yield [*one[:2], *one[2:] * directions]


def _parameters(call: AtenCall, directions: int, kernel: Tensor, inner: Tensor) -> list[Tensor]:
    shapes = [(directions, *kernel.shape), (directions, *inner.shape)]
    if call.arguments.get("has_biases") is not False:
        shapes.append((directions, 2 * kernel.shape[0]))
    return [Tensor(key=(kernel.key, position), shape=shape) for position, shape in enumerate(shapes)]
