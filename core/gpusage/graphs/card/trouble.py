"""Why a job has no card: one sentence in place of the card, so that the user sees it when submitting the job."""

from __future__ import annotations

import base64

from gpusage.plain_text import one_line

SIGN = "!"
"""No card begins with it."""

_MAXIMUM_BYTES = 600


def encode_trouble(sentence: str) -> str:
    """Return *sentence* as a text that may stand where a card stands: no commas, spaces or line ends."""
    return SIGN + base64.b64encode(sentence.encode("utf-8", "replace")[:_MAXIMUM_BYTES]).decode("ascii")


def decode_trouble(text: str) -> str | None:
    """Return the sentence in *text*; ``None`` where it is a card, or nothing that `encode_trouble` made."""
    if not text.startswith(SIGN) or len(text) > 2 * _MAXIMUM_BYTES:
        return None
    try:
        sentence = base64.b64decode(text.removeprefix(SIGN), validate=True).decode("utf-8", "replace")
    except ValueError:
        return None
    return one_line(sentence) or None
