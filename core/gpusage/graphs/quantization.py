"""The precision of a model's published weights, from the ``quantization_config`` of its Hugging Face configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpusage.graphs.model_files import printable
from gpusage_hooks.types import ModelGraph, Precision

# The keys with the bits of a weight in AWQ, GPTQ, HQQ, compressed-tensors, Quanto and others.
_BITS_KEYS = ("bits", "w_bit", "nbits", "num_bits", "weights", "quant_type", "quant_method")
# The flags of bitsandbytes, and the bits that they mean.
_FLAGS = {"load_in_4bit": 4, "_load_in_4bit": 4, "load_in_8bit": 8, "_load_in_8bit": 8}
_WIDTH = re.compile(r"(?:^|int|fp|float)(\d)(?!\d)")
# In keys of other bits: of activations, of the KV cache, of HQQ's scales and zero points.
_NOT_WEIGHTS = re.compile("activation|kv_cache|scale|zero")
_EIGHT, _FOUR = 8, 4


def with_quantized_weights(graph: ModelGraph, configuration: object) -> ModelGraph:
    """Return *graph* with the precision in its ``quantization_config``, and a note; unchanged without one."""
    if not isinstance(configuration, dict):
        return graph

    # A configuration is a stranger's file, and the method stands in a note.
    method = printable(str(configuration.get("quant_method", "unknown")))[:20]
    # Without a width the weights count whole: a share must have room for them.
    precision = weight_precision(configuration)
    if precision is None:
        unknown = (*graph.unknown_op_types, (f"{method} weights", 1))
        note = f"Its configuration has quantised weights ({method}) of an unknown width; they count whole."
        return replace(graph, unknown_op_types=unknown, notes=(*graph.notes, note))
    return replace(
        graph,
        precision=precision,
        notes=(*graph.notes, quantized_weights_note(f"its configuration: {method}", precision)),
    )


def quantized_weights_note(source: str, precision: Precision) -> str:
    """Return the note on a model with quantized weights."""
    return (
        f"Its weights are quantised ({source}): inference counts them as {precision} if no precision is named, "
        "training as floats."
    )


def weight_precision(configuration: Mapping[str, object]) -> Precision | None:
    """Return the precision of the weights: ``int4`` up to 4 bits, ``int8`` up to 8; ``None`` if it is unknown.

    bitsandbytes has words of its own for both, and weights of 8 bits may be floats, or be multiplied as they are.

    Of groups of layers with different widths the widest counts: a share must have room for all of them.

    Source:
        The classes of ``transformers.utils.quantization_config``, and the formats of compressed-tensors.
    """
    bits = max(_widths(configuration), default=0)
    if not 1 <= bits <= _EIGHT:
        return None
    method, stored = (str(configuration.get(key)) for key in ("quant_method", "format"))
    if method == "bitsandbytes":
        return "nf4" if bits <= _FOUR else "bnb-int8"
    if bits <= _FOUR:
        return "int4"
    if "fp8" in method or stored == "float-quantized":
        return "fp8"
    return "w8a8" if stored == "int-quantized" else "int8"


def _widths(configuration: Mapping[str, object]) -> Iterator[int]:
    """Yield the bits of weights in *configuration* and in what is nested in it."""
    pending: list[Mapping[str, object]] = [configuration]
    while pending:  # a file may nest deeper than Python's recursion limit
        for key, value in pending.pop().items():
            if isinstance(value, dict) and not _NOT_WEIGHTS.search(str(key)):
                pending.append(value)
            elif key in _FLAGS and value is True:
                yield _FLAGS[key]
            elif key in _BITS_KEYS and type(value) is int:
                yield value
            elif key in _BITS_KEYS and isinstance(value, str) and (match := _WIDTH.search(value)):
                yield int(match[1])
