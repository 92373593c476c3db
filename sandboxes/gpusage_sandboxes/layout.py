"""The nodes of a sandbox, where everything of it lies, and the record that makes a folder a sandbox."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import require_own

MOST_GPUS_PER_NODE = 64
_GROUP = re.compile(r"(?:(?P<count>\d+)x)?(?P<type>[a-z][a-z0-9_-]{0,23}|\d+[a-z][a-z0-9_]{0,19}):(?P<gpus>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxNode:
    """One node of a sandbox.

    Attributes:
        gpu_type: By which the manager's users ask for it.
        other_gpus: Further types there, each with how many, as slices (MIG) are.
        features: By which users may ask for the node; ``None`` is its GPU type.
        has_shares: Whether its GPUs can be shared, where those of the cluster can.
    """

    name: str
    gpu_type: str
    gpu_count: int
    other_gpus: tuple[tuple[str, int], ...] = ()
    features: tuple[str, ...] | None = None
    has_shares: bool = True


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


class Layout:
    """The places that every sandbox has, below one folder.

    Attributes:
        folder: All of it.
        etc: The configuration of the daemons and of gpusage: plain files, to be edited.
        gpusage_toml: The configuration of gpusage.
        record: What makes a folder a sandbox; written first, removed last.
        logs: One log per daemon, named after it.
        run: Process ids and sockets.
        socket: Where gpusaged listens.
        jobs: Where commands and jobs start.
        state: What the daemons keep, and the decisions of gpusage.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etc = folder / "etc"
        self.gpusage_toml = self.etc / "gpusage.toml"
        self.record = folder / "sandbox.json"
        self.logs = folder / "log"
        self.run = folder / "run"
        self.socket = self.run / "gpusaged.sock"
        self.jobs = folder / "jobs"
        self.state = folder / "state"

    def pid_file(self, daemon: str) -> Path:
        """Return where the process id of *daemon* stands."""
        return self.run / f"{daemon}.pid"

    def log_file(self, daemon: str) -> Path:
        """Return where *daemon* writes its log."""
        return self.logs / f"{daemon}.log"


_R = TypeVar("_R", bound=msgspec.Struct)


class _Place(msgspec.Struct, frozen=True):
    """Where a sandbox was started."""

    folder: str


def write_record(layout: Layout, record: msgspec.Struct) -> None:
    """Make the folder a sandbox; a copy of the record makes no other folder one, which `down` would remove."""
    document = {**msgspec.to_builtins(record), "folder": str(layout.folder.resolve())}
    layout.record.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1))


def read_record(layout: Layout, kind: type[_R], manager: str) -> _R:
    """Return the record of the sandbox in the folder of *layout*.

    Args:
        layout: Where it lies.
        kind: A tagged struct, whose tag is the schema.
        manager: The workload manager's name, for the error.

    Raises:
        RequestError: There is no sandbox of this kind, it is another user's, or it was moved or copied there.
    """
    try:
        require_own(layout.folder)
        content = layout.record.read_bytes()
        place = msgspec.json.decode(content, type=_Place).folder
        record = msgspec.json.decode(content, type=kind)
    except (OSError, msgspec.MsgspecError):
        raise no_sandbox(layout, manager) from None

    if place != str(layout.folder.resolve()):
        message = (
            f"Folder {str(layout.folder)!r} must be where its sandbox was started; its record is of {place!r}. "
            "Remove the folder by hand, if nothing in it is of use."
        )
        raise RequestError(message)

    return record


def no_sandbox(layout: Layout, manager: str) -> RequestError:
    """Return the error for a folder that holds no sandbox of *manager*."""
    return RequestError(
        f"Folder {str(layout.folder)!r} must hold a sandbox; got none. Start one: gpusage {manager} sandbox up."
    )
