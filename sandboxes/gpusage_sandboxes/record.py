"""What makes a folder a sandbox: a document that says what runs in it, for those who open it later."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import require_own
from gpusage_sandboxes.layout import Layout

_R = TypeVar("_R", bound=msgspec.Struct)


class _Place(msgspec.Struct, frozen=True):
    """Where a sandbox was started; empty in records of earlier versions."""

    folder: str = ""


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
    if place and place != str(layout.folder.resolve()):
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
