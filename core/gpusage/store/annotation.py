"""The annotation: one line that a workload manager keeps with a job, and that reports gpusage's change of it.

``gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40, prefer v100 | one reason; another``

Invariants:

1. An annotation is printable ASCII: logs, terminals and databases of every kind can hold it.
2. `parse_annotation` reads the text of a `JobAnnotation`, also cut off, and behind a site's own text.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Literal, cast

from gpusage.boundary.printable_text import ascii_line, shortened
from gpusage_hooks.types import Decision, RenderedDecision

AnnotationCode = Literal["REWRITE", "KEEP", "STUCK", "BACK"]
"""As a decision's; or ``STUCK``, a share that cannot start and stays one, or ``BACK``, a job that was rewritten and has
its user's request again."""

REST_LIMIT_BYTES = 1000
"""Of what follows the number; a manager that has less room cuts its end off."""

UNNAMED = "the job names no model"
"""How the reasons of such a job begin, where its site observes its history."""
EXCLUDES = "kept off "
"""How the reason begins of a job that is bound to GPU types because its user forbids others, or they are too small.

No other reason begins so: by these words a mark on a job tells.
"""
START = "gpusage "
_MARK = re.compile(
    r"\bgpusage (?:(?P<number>[0-9a-f]{12}) )?"
    r"(?P<code>REWRITE|KEEP|STUCK|BACK)(?: \((?P<mode>observe|advise)\))?(?P<rest>[^\n]*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnnotation:
    """The content of an annotation.

    Attributes:
        number: Of the record that the store has; empty where gpusaged had decided nothing yet.
        before: The request as asked; empty where it was not understood, or cut off.
        after: The request as it is now; in the modes ``observe`` and ``advise``, as it would be.
        reasons: As one text.
    """

    number: str
    code: AnnotationCode
    mode: str
    before: str
    after: str
    reasons: str

    def __str__(self) -> str:
        return (START + self.number).rstrip() + self.rest

    @property
    def of_share(self) -> bool:
        """Whether the job that carries it asks for a share in place of its user's GPU."""
        return self.mode == "enforce" and self.code in ("REWRITE", "STUCK")

    @property
    def keeps_off(self) -> bool:
        """Whether the job that carries it must not get other GPU types, which its user forbids or are too small."""
        return any(reason.startswith(EXCLUDES) for reason in self.reasons.split("; "))

    @property
    def rest(self) -> str:
        """The text after the number."""
        mode = "" if self.mode == "enforce" else f" ({self.mode})"
        change = f" {self.before}" + f" -> {self.after}" * (self.after != self.before)
        return shortened(ascii_line(f" {self.code}{mode}{change.rstrip()} | {self.reasons}"), REST_LIMIT_BYTES)


def annotation_of_decision(
    decision: Decision, rendered: RenderedDecision, mode: str, number: str = ""
) -> JobAnnotation:
    """Return the annotation of *decision*, which rests on nothing else: not on who submits, nor on a job's name."""
    return JobAnnotation(
        number=number,
        code=cast("AnnotationCode", decision.code.value),
        mode=mode,
        before=rendered.before,
        after=rendered.after,
        reasons="; ".join(decision.reasons),
    )


def with_annotation(text: str, mark: JobAnnotation, limit_bytes: int) -> str:
    """Return *text* with *mark* in place of the annotation that it holds, or behind it; only *mark* is cut off.

    Args:
        text: The words of others stay.
        mark: Printable ASCII.
        limit_bytes: Of the whole.
    """
    # A mark behind a site's own text stays there, so that the text is not moved.
    match = _MARK.search(text)
    others = text[: match.start()] if match else f"{text}; " if text else ""
    room = limit_bytes - len(others.encode())
    line = str(mark)
    return others + (line if len(line) <= room else f"{line[: max(room - 3, 0)]}...")


def parse_annotation(text: str) -> JobAnnotation | None:
    """Return the annotation in *text*, where others may have written as well; ``None`` where there is none.

    It is the first one: behind it stand reasons, and a user's text in them may look like another.
    """
    match = _MARK.search(text)
    if match is None:
        return None

    # Of a mark that was cut off, what is missing is empty.
    request, _, reasons = match["rest"].partition(" | ")
    before, _, after = request.strip().partition(" -> ")
    return JobAnnotation(
        number=match["number"] or "",
        code=cast("AnnotationCode", match["code"]),
        mode=match["mode"] or "enforce",
        before=before,
        after=after or before,
        reasons=reasons,
    )


class RecordNumbers:
    """Numbers the records that one process makes: twelve hexadecimal digits, eight of the second, four of a count.

    The count begins anywhere, so that the numbers of two processes hardly ever meet.
    """

    def __init__(self) -> None:
        self._count = secrets.randbits(16)

    def next_number(self, now_s: float) -> str:
        """Return the number of a record made at *now_s*: its second, and a count that no second repeats."""
        # 65,536 decisions a second is more than one process makes.
        self._count = (self._count + 1) & 0xFFFF
        return f"{int(now_s):08x}{self._count:04x}"
