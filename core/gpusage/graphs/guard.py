"""Rules for every reader of a user's file: only regular files, and a limit on every figure and name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from gpusage.plain_text import shortened, visible
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Shape

MAXIMUM_RANK = 32
"""Dimensions of one tensor."""
MAXIMUM_ELEMENTS = 2**48
"""Of one tensor; at 8 bytes each this is 2 PiB, far beyond any GPU and far from overflowing 64 bits."""
MAXIMUM_NODES = 50_000
MAXIMUM_TEXT = 256
"""Characters of a name that is shown."""


@contextmanager
def regular_file(path: str) -> Iterator[int]:
    """Open the regular file at *path* for reading, and give its descriptor.

    A FIFO or a device is refused without waiting for it.

    Raises:
        GraphError: There is no such file, it may not be read, or it is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        trouble = getattr(error, "strerror", None) or str(error)
        message = f"Model {shown(path)} must be a file that you can read; got: {trouble.lower()}. Check the path."
        raise GraphError(message) from error
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG:
            message = f"Model {shown(path)} must be a regular file; got {_kind(kind)}. Check the path."
            raise GraphError(message)
        yield descriptor
    finally:
        os.close(descriptor)


def read_whole(path: str, limit_bytes: int) -> bytes:
    """Return the bytes of the file at *path*.

    Raises:
        GraphError: As `regular_file`, or the file is larger than *limit_bytes*.
    """
    with regular_file(path) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        message = f"Model {shown(path)} must be at most {limit_bytes} bytes; got more. Check that it is the right file."
        raise GraphError(message)
    return content


def check_shape(shape: Sequence[int], subject: str) -> Shape:
    """Return *shape* where a tensor may have it; a negative size counts by its absolute value.

    Raises:
        GraphError: It has too many dimensions or elements.
    """
    if fits(shape):
        return tuple(shape)
    if len(shape) > MAXIMUM_RANK:
        message = f"{subject} must have at most {MAXIMUM_RANK} dimensions; got {len(shape)}. Check the model."
        raise GraphError(message)
    sizes = "x".join(str(size) if abs(size) <= MAXIMUM_ELEMENTS else "huge" for size in shape)
    message = f"{subject} must have at most 2^48 elements; got {sizes}. Check the model's shapes."
    raise GraphError(message)


def fits(shape: Sequence[int]) -> bool:
    """Tell whether a tensor may have *shape*."""
    if len(shape) > MAXIMUM_RANK:
        return False
    elements = prod(shape) or prod(size or 1 for size in shape)
    return -MAXIMUM_ELEMENTS <= elements <= MAXIMUM_ELEMENTS


def printable(text: str) -> str:
    """Return *text* without what a terminal would act on, cut to a length that fits a line."""
    return shortened(visible(text[: MAXIMUM_TEXT + 1]), MAXIMUM_TEXT)


def shown(text: str) -> str:
    """Return *text* in quotes, fit for one line of a message."""
    return f"'{printable(text)}'"


def _kind(kind: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(kind, "something else")
