"""Which size of a `torch.export` program's first input is the batch, as the layers that read it say."""

from __future__ import annotations

import re
from typing import Any

_RECURRENT = re.compile(r"torch\.ops\.aten\.(lstm|gru|rnn_\w+)\.input$")
_ATTENTION = ",torch.nn.modules.activation.MultiheadAttention"
_PLACES = 2
"""Only the first or the second size of an input may be the batch."""

Json = Any


def batch_place(graph: Json, first: str) -> int:
    """Return 0, or 1 where sequences stand first, for a layer with ``batch_first=False``.

    An attention turns what it reads unless sequences stand first there: its products read that as it comes.

    Args:
        graph: The program's calls, and the sizes of their tensors.
        first: The name of its first input.
    """
    sizes = _sizes(graph, first)
    turned: set[str] = set()
    for node in graph["nodes"]:
        arguments = {item["name"]: item["arg"] for item in node["inputs"]}
        is_attention = str(node.get("metadata", {}).get("nn_module_stack")).endswith(_ATTENTION)
        if is_attention:
            turned.update(each["as_tensor"]["name"] for each in node["outputs"] if "as_tensor" in each)
        read = (arguments.get("input") or {}).get("as_tensor", {}).get("name")
        if read is None:
            continue
        is_recurrent = _RECURRENT.match(node["target"]) and arguments["batch_first"] == {"as_bool": False}
        if is_recurrent or (is_attention and read not in turned):
            samples = _sizes(graph, read)[1]
            places = [place for place, size in enumerate(sizes[:_PLACES]) if size == samples]
            return 1 if places == [1] else 0
    return 0


def _sizes(graph: Json, name: str) -> list[int | str]:
    sizes = graph["tensor_values"][name]["sizes"]
    return [size["as_int"] if "as_int" in size else size["as_expr"]["expr_str"] for size in sizes]
