"""Why a job brings no card: one sentence in the card's place, so that the user hears it where the job is submitted."""

from __future__ import annotations

import base64

MARK = "!"
"""No card begins with it."""

_MAXIMUM_BYTES = 600


def encode_trouble(sentence: str) -> str:
    """Return *sentence* as a text that may stand where a card stands: no commas, spaces or line ends."""
    return MARK + base64.b64encode(sentence.encode("utf-8", "replace")[:_MAXIMUM_BYTES]).decode("ascii")


def decode_trouble(text: str) -> str | None:
    """Return the sentence in *text*; ``None`` where it is a card, or nothing that `encode_trouble` made."""
    if not text.startswith(MARK) or len(text) > 2 * _MAXIMUM_BYTES:
        return None
    try:
        sentence = base64.b64decode(text.removeprefix(MARK), validate=True).decode("utf-8", "replace")
    except ValueError:
        return None
    return " ".join("".join(letter if letter.isprintable() else " " for letter in sentence).split()) or None
