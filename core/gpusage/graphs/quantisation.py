"""Reads how wide a model's published weights are from the ``quantization_config`` of its Hugging Face configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpusage.graphs.guard import printable
from gpusage_hooks.types import ModelGraph, Precision

_BITS = ("bits", "w_bit", "nbits", "num_bits", "weights", "quant_type", "quant_method")
"""Under which keys methods write the bits of a weight; first those of AWQ, GPTQ, HQQ, compressed-tensors, Quanto."""
_SWITCHES = {"load_in_4bit": 4, "_load_in_4bit": 4, "load_in_8bit": 8, "_load_in_8bit": 8}
"""Of bitsandbytes."""
_WIDTH = re.compile(r"(?:^|int|fp|float)(\d)(?!\d)")
_OF_OTHERS = re.compile("activation|kv_cache|scale|zero")
"""In names of what tells no width of weights: that of activations, of the cache, of HQQ's scales and zero points."""
_EIGHT, _FOUR = 8, 4


def with_quantised_weights(graph: ModelGraph, configuration: object) -> ModelGraph:
    """Return *graph* with the precision that its ``quantization_config`` says, and a note; as it is without one."""
    if not isinstance(configuration, dict):
        return graph
    method = printable(str(configuration.get("quant_method", "unknown")))[:20]
    precision = precision_of(configuration)
    if precision is None:
        unknown = (*graph.unknown_op_types, (f"{method} weights", 1))
        note = (
            f"Its configuration has quantised weights ({method}) of a width that gpusage cannot tell; they count whole."
        )
        return replace(graph, unknown_op_types=unknown, notes=(*graph.notes, note))
    return replace(
        graph, precision=precision, notes=(*graph.notes, quantised_note(f"its configuration: {method}", precision))
    )


def quantised_note(source: str, precision: Precision) -> str:
    """Return what is said of a model with quantised weights."""
    return (
        f"Its weights are quantised ({source}): inference counts them as {precision} where no precision is named, "
        "training as floats."
    )


def precision_of(configuration: Mapping[str, object]) -> Precision | None:
    """Return the precision of the weights: of 4 bits and fewer ``int4``, of up to 8 ``int8``; ``None`` if nothing says.

    Where groups of layers have different widths, it is the widest: a share must have room for all of them.

    Source:
        The classes of ``transformers.utils.quantization_config``.
    """
    bits = max(_widths(configuration), default=0)
    if not 1 <= bits <= _EIGHT:
        return None
    return "int4" if bits <= _FOUR else "int8"


def _widths(configuration: Mapping[str, object]) -> Iterator[int]:
    """Yield each width that a configuration, or what stands in it, gives for weights."""
    left: list[Mapping[str, object]] = [configuration]
    while left:  # a file may nest deeper than Python calls
        for key, value in left.pop().items():
            if isinstance(value, dict) and not _OF_OTHERS.search(str(key)):
                left.append(value)
            elif key in _SWITCHES and value is True:
                yield _SWITCHES[key]
            elif key in _BITS and type(value) is int:
                yield value
            elif key in _BITS and isinstance(value, str) and (match := _WIDTH.search(value)):
                yield int(match[1])
