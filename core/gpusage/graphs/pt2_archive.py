"""Opens the zip that a ``.pt2`` program is, and reads from it two texts of bounded size and nothing else.

The weights and sample inputs in the same zip, which may be pickles, are never opened.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from gpusage.graphs.guard import printable, regular_file, shown
from gpusage.graphs.pt2_program import Program, program_graph
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

MAXIMUM_PROGRAM_BYTES = 16 * 1024 * 1024
"""Python needs up to 27 times as much to hold it, which stays below half a GiB."""
MAXIMUM_LIST_BYTES = 4 * 1024 * 1024
MAXIMUM_DIRECTORY_BYTES = 16 * 1024 * 1024
_TAIL_BYTES = 22 + 56 + 20 + 65535
_SPOILT = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
)
"""What reading a file that is damaged, or made to harm, raises in `zipfile`, `json` and in walking the document."""


def read_program(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of the program at *source*.

    Raises:
        GraphError: It is not a file that may be read, or not a program.
    """
    try:
        text, weights = _texts(source)
        places = _places(json.loads(weights))
        return program_graph(
            Program(json.loads(text), places), name=printable(PurePath(source).stem), source=source, shape=shape
        )
    except _SPOILT as error:
        message = (
            f"Model {shown(source)} must be a program as torch.export.save writes it; "
            f"got a file that is not ({type(error).__name__}: {printable(str(error))[:80]}). Export it again."
        )
        raise GraphError(message) from error


def _places(weights: Any) -> dict[str, str]:  # noqa: ANN401 - JSON
    """Return where each weight lies; two that lie in one place are one."""
    return {name: str(entry["path_name"]) for name, entry in weights.get("config", {}).items()}


def _texts(source: str) -> tuple[bytes, bytes]:
    """Return the JSON of the program in the zip at *source*, and that of the list of its weights."""
    with regular_file(source) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
        size_bytes = os.fstat(descriptor).st_size
        file.seek(max(0, size_bytes - _TAIL_BYTES))
        if _directory_bytes(file.read(_TAIL_BYTES)) > MAXIMUM_DIRECTORY_BYTES:
            raise _too_large(source, "a table of contents", MAXIMUM_DIRECTORY_BYTES)
        with zipfile.ZipFile(file) as archive:
            members = sorted(archive.namelist())
            weights = [name for name in members if name.endswith("model_weights_config.json")]
            program = _read(archive, _program_member(members, source), source, MAXIMUM_PROGRAM_BYTES)
            return program, _read(archive, weights[0], source, MAXIMUM_LIST_BYTES) if weights else b"{}"


def _read(archive: zipfile.ZipFile, member: str, source: str, limit_bytes: int) -> bytes:
    with archive.open(member) as opened:
        text = opened.read(limit_bytes + 1)
    if len(text) > limit_bytes:
        raise _too_large(source, "a program", limit_bytes)
    return text


def _too_large(source: str, subject: str, limit_bytes: int) -> GraphError:
    message = f"Model {shown(source)} must have {subject} of at most {limit_bytes} bytes; got more. Use ONNX instead."
    return GraphError(message)


def _directory_bytes(tail: bytes) -> int:
    """Return how long the zip's table of contents says that it is, from the last bytes of the file."""
    end = tail.rfind(b"PK\x05\x06")
    if end < 0:
        message = "no zip"
        raise ValueError(message)
    size_bytes = int(struct.unpack_from("<I", tail, end + 12)[0])
    long_end = tail.rfind(b"PK\x06\x06")
    return int(struct.unpack_from("<Q", tail, long_end + 40)[0]) if long_end >= 0 else size_bytes


def _program_member(members: Sequence[str], source: str) -> str:
    """Return the member that holds the program: ``models/*.json``, before PyTorch 2.9 a file with a name of its own."""
    for member in members:
        parts = PurePath(member).parts
        inside = len(parts) > 1 and parts[-2] == "models" and parts[-1].endswith(".json")
        if parts and (inside or parts[-1] == "serialized_exported_program.json"):
            return member
    message = (
        f"Model {shown(source)} must hold a program of torch.export.save; got a zip without one. "
        "Compiled packages and TorchScript cannot be read; export the model with torch.export.save."
    )
    raise GraphError(message)
