"""Shares that were submitted a moment ago and wait for their containers: their applications' tags show them.

So whoever submits next, on whatever host, knows of room that is given away and that no node shows as used yet.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from gpusage.service.reservations import Reservation
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_yarn.cluster.documents import Document, as_list
from gpusage_yarn.settings import MANAGER
from gpusage_yarn.share_plan import TYPE, Plan

RECENT_S = 60.0
"""Whoever waits for longer waits for room that nobody has."""
_MAX_TAGS = 10
_MAX_USER_TAGS = 5
_OURS = "gpusage-"
_USER_TAG = re.compile(r"[\x20-\x2b\x2d-\x7e]{1,100}")
_NUMBER = re.compile(r"\bgpusage-number-([0-9a-f]{12})\b")
_TAG = re.compile(r"gpusage-(share|containers|label)-([0-9a-z_-]+)", re.IGNORECASE)


def require_tags(tags: Sequence[str]) -> None:
    """Refuse tags of a user that YARN does not take, or that could be mistaken for gpusage's own.

    Raises:
        RequestError: One is such, or they are too many.
    """
    wrong = next((tag for tag in tags if not _USER_TAG.fullmatch(tag) or tag.lower().startswith(_OURS)), None)
    if wrong is not None:
        rule = f"have 1 to 100 ASCII characters, none of them a comma, and not begin with {_OURS!r}"
        message = f"Tag must {rule}; got {wrong[:120]!a}. Change --tag."
        raise RequestError(message)

    if len(tags) > _MAX_USER_TAGS:
        message = (
            f"Application must have at most {_MAX_USER_TAGS} tags of its user, because YARN takes {_MAX_TAGS} "
            f"and gpusage adds some; got {len(tags)}. Leave some out."
        )
        raise RequestError(message)


def make_tags(plan: Plan, number: str = "", own: Iterable[str] = ()) -> list[str]:
    """Return the tags of an application with *plan*; YARN may write them in small letters, and takes ten.

    Args:
        plan: Of the application.
        number: Of its decision's record; empty where none is kept.
        own: Its user's.
    """
    # Labels come last: YARN takes ten tags, and a plan may have sixteen labels.
    numbers = [f"gpusage-number-{number}"] if number else []
    labels = (f"gpusage-label-{label}" for label in plan.labels)
    tags = [f"gpusage-share-{plan.share}", f"gpusage-containers-{plan.containers}", *numbers, *own, *labels]
    return tags[:_MAX_TAGS]


def find_decision_number(tags: str) -> str:
    """Return the number of the decision that *tags* of an application name; empty where they name none."""
    match = _NUMBER.search(tags)
    return match[1] if match else ""


def parse_plan_tags(tags: str) -> tuple[int, tuple[str, ...]]:
    """Return the share and the labels, in small letters, that *tags* of an application name; 0 where they name none."""
    matches = [match.groups() for match in _TAG.finditer(tags)]
    shares = [int(text) for kind, text in matches if kind == "share" and text.isdigit()]
    return (shares or [0])[0], tuple(text for kind, text in matches if kind == "label")


def read_pending_claims(get: Callable[[str], Document], labels: Iterable[str]) -> tuple[Reservation, ...]:
    """Return the reservations of waiting applications on nodes with *labels*; none if YARN does not report them.

    Args:
        get: Asks for a path below ``/ws/v1/cluster``.
        labels: The cluster's.
    """
    since_ms = int(1000 * (time.time() - RECENT_S))
    states = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
    path = f"apps?applicationTypes={TYPE}&states={states}&startedTimeBegin={since_ms}&deSelects=resourceRequests"
    with suppress(GpuUsageError):
        return tuple(parse_claims(get(path), labels))
    return ()


def parse_claims(document: Document, labels: Iterable[str]) -> Iterator[Reservation]:
    """Yield the shares that each application in *document* still waits for.

    Args:
        document: As ``apps`` answers.
        labels: The cluster's, by which the tags' are known whatever their case.
    """
    # YARN may write tags in small letters.
    known = {label.casefold(): label for label in labels}
    for application in as_list(document, "apps", "app"):
        tags = [match.groups() for match in _TAG.finditer(str(application.get("applicationTags") or ""))]
        numbers = {kind: int(text) for kind, text in tags if text.isdigit()}
        named = tuple(known[text.casefold()] for kind, text in tags if kind == "label" and text.casefold() in known)

        started = max(int(application.get("runningContainers") or 0) - 1, 0)  # the master is one
        waiting = numbers.get("containers", 1) - started
        share = numbers.get("share", 0)
        if waiting > 0 and named and 1 <= share <= 100:  # percent
            yield Reservation(manager=MANAGER, site_types=named, share_percent=share, count=waiting)
