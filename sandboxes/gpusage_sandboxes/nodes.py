"""The nodes of a sandbox, as people write them: ``2xv100:4,1xh100:8``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpusage_hooks.errors import RequestError

MOST_GPUS_PER_NODE = 64
_GROUP = re.compile(r"(?:(?P<count>\d+)x)?(?P<type>[a-z][a-z0-9_-]{0,23}|\d+[a-z][a-z0-9_]{0,19}):(?P<gpus>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxNode:
    """One node of a sandbox; its name begins with its GPU type, by which the manager's users ask for it."""

    name: str
    gpu_type: str
    gpu_count: int


def read_nodes(text: str, *, most_nodes: int, fewest_gpus: int, example: str) -> tuple[SandboxNode, ...]:
    """Return the nodes that *text* describes, numbered by type.

    Args:
        text: Groups of ``COUNTxTYPE:GPUS``, separated by commas; a count of 1 may be left out.
        most_nodes: How many a sandbox of this kind can hold.
        fewest_gpus: Of a node; 0 where a node may have none.
        example: What a refusal says to write.

    Raises:
        RequestError: *text* is not of this form, or describes more than a sandbox can hold.
    """
    nodes: list[SandboxNode] = []
    numbers: dict[str, int] = {}
    for group in text.split(","):
        match = _GROUP.fullmatch(group.strip())
        count, gpus = (int(match["count"] or 1), int(match["gpus"])) if match else (0, 0)
        if match is None or not 1 <= count <= most_nodes or not fewest_gpus <= gpus <= MOST_GPUS_PER_NODE:
            message = (
                f"Nodes must be COUNTxTYPE:GPUS, separated by commas, at most {most_nodes} nodes and "
                f"{MOST_GPUS_PER_NODE} GPUs per node; got {group!r}. Write, for example, {example}."
            )
            raise RequestError(message)
        gpu_type = match["type"]
        for _ in range(count):
            numbers[gpu_type] = numbers.get(gpu_type, 0) + 1
            nodes.append(SandboxNode(name=f"{gpu_type}-{numbers[gpu_type]}", gpu_type=gpu_type, gpu_count=gpus))
    if len(nodes) > most_nodes:
        message = f"A sandbox must have at most {most_nodes} nodes; got {len(nodes)}. Ask for fewer."
        raise RequestError(message)
    return tuple(nodes)
