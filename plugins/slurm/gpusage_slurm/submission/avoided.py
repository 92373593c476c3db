"""The nodes that a share is kept off for its neighbours' sake, in the words of its mark.

A mark has them behind the share, ``gres/mps:40, avoid n1,n2, constraint v100``, so that what is cut off is not these.
"""

from __future__ import annotations

import re

from gpusage.mark import Mark

_AVOIDED = re.compile(r"avoid (?P<nodes>[^, ]+(?:,[^, ]+)*)(?:, |$)")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""A node's name, as no list with ranges is."""


def avoiding(names: tuple[str, ...]) -> str:
    """Return how a mark says that a job avoids nodes with these *names*."""
    return f"avoid {','.join(names)}"


def avoided_by(mark: Mark | None) -> tuple[str, ...]:
    """Return the nodes that a job with *mark* avoids for its neighbours' sake."""
    match = _AVOIDED.match(_beside_share(mark)) if mark else None
    return tuple(match["nodes"].split(",")) if match else ()


def place_of(mark: Mark) -> str:
    """Return what *mark* says beside the share and the nodes: a constraint, a preference, or nothing."""
    return _AVOIDED.sub("", _beside_share(mark), count=1) if avoided_by(mark) else _beside_share(mark)


def without_avoided(mark: Mark) -> str:
    """Return what *mark* says that the job asks for, without the nodes that it avoids."""
    return ", ".join(filter(None, (mark.after.partition(", ")[0], place_of(mark))))


def _beside_share(mark: Mark | None) -> str:
    return mark.after.partition(", ")[2] if mark else ""
