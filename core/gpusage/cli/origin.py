"""What made a page: this gpusage, now, by the command as it was typed."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from gpusage.pages.html import Origin


def origin() -> Origin:
    """Return where a page of this process is from; ``SOURCE_DATE_EPOCH`` sets its time, to compare pages."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.now().astimezone()
    if epoch.isdecimal():
        with suppress(OverflowError, ValueError):  # no year has so many digits
            now = datetime.fromtimestamp(int(epoch), tz=timezone.utc)
    program, *arguments = sys.argv or [""]
    return Origin(
        version=version("gpusage"),
        date=now.strftime("%Y-%m-%d %H:%M %Z"),
        command=shlex.join([Path(program).name, *arguments]),
    )
