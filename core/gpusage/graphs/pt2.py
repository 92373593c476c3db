"""Reads a ``.pt2`` program of `torch.export.save`: a zip whose graph is JSON.

PyTorch is not needed and nothing is unpickled. The weights and sample inputs in the same zip, which may be pickles, are
never opened.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gpusage.graphs.guard import printable, regular_file, shown
from gpusage.graphs.pt2_program import Program, program_graph
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

SUFFIX = ".pt2"
PICKLES = frozenset({".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth", ".safetensors", ".tar"})
MAXIMUM_PROGRAM_BYTES = 16 * 1024 * 1024
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


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read the graph of a ``.pt2`` program; say of files of weights alone that they are no model."""
    suffix = PurePath(source).suffix.lower()
    if suffix in PICKLES and os.path.lexists(source):
        message = (
            f"Model {shown(source)} must hold a graph; got weights, which gpusage never loads. "
            "Export it with torch.export.save (.pt2) or torch.onnx.export (.onnx)."
        )
        raise GraphError(message)
    if suffix != SUFFIX:
        return None
    try:
        program = Program(*map(json.loads, _texts(source)))
        return program_graph(program, name=printable(PurePath(source).stem), source=source, shape=shape)
    except _SPOILT as error:
        message = (
            f"Model {shown(source)} must be a program as torch.export.save writes it; "
            f"got a file that is not ({type(error).__name__}: {printable(str(error))[:80]}). Export it again."
        )
        raise GraphError(message) from error


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
            program = _read(archive, _program_member(members, source), source)
            return program, _read(archive, weights[0], source) if weights else b"{}"


def _read(archive: zipfile.ZipFile, member: str, source: str) -> bytes:
    with archive.open(member) as opened:
        text = opened.read(MAXIMUM_PROGRAM_BYTES + 1)
    if len(text) > MAXIMUM_PROGRAM_BYTES:
        raise _too_large(source, "a program", MAXIMUM_PROGRAM_BYTES)
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
