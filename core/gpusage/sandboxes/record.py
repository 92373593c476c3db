"""What makes a folder a sandbox: a document that says what runs in it, for those who open it later."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gpusage.sandboxes.host import require_own
from gpusage.sandboxes.layout import Layout
from gpusage_hooks.errors import RequestError

_R = TypeVar("_R", bound=msgspec.Struct)


def write_record(layout: Layout, record: msgspec.Struct) -> None:
    """Make the folder a sandbox."""
    layout.record.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))


def read_record(layout: Layout, kind: type[_R], manager: str) -> _R:
    """Return the record of the sandbox in the folder of *layout*.

    Args:
        layout: Where it lies.
        kind: A tagged struct, whose tag is the schema.
        manager: The workload manager's name, for the error.

    Raises:
        RequestError: There is no sandbox of this kind, or it is another user's.
    """
    try:
        require_own(layout.folder)
        return msgspec.json.decode(layout.record.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        raise no_sandbox(layout, manager) from None


def no_sandbox(layout: Layout, manager: str) -> RequestError:
    """Return the error for a folder that holds no sandbox of *manager*."""
    return RequestError(
        f"Folder {str(layout.folder)!r} must hold a sandbox; got none. Start one: gpusage {manager} sandbox up."
    )
