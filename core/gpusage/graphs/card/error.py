"""The reason for a missing card: a sentence in place of the card, which the user sees when submitting.

A module of its own, because ``gpusage job-card`` runs for each sbatch and must not import the reader of cards.
"""

from __future__ import annotations

import base64

from gpusage.boundary.printable_text import one_line

ERROR_MARK = "!"
"""The first character of an error; base64, and so a card, does not have it."""

_MAXIMUM_BYTES = 600


def encode_error(sentence: str) -> str:
    """Return *sentence* as a text without commas, spaces and line ends, in place of a card."""
    # Cut before encoding, so that the base64 stays whole; half a character at the end is replaced when it is read.
    return ERROR_MARK + base64.b64encode(sentence.encode("utf-8", "replace")[:_MAXIMUM_BYTES]).decode("ascii")


def decode_error(text: str) -> str | None:
    """Return the sentence in *text*; ``None`` for a card and for any other text."""
    # The text comes from a user's environment: its length and its characters may be anything.
    if not text.startswith(ERROR_MARK) or len(text) > 2 * _MAXIMUM_BYTES:
        return None
    try:
        sentence = base64.b64decode(text.removeprefix(ERROR_MARK), validate=True).decode("utf-8", "replace")
    except ValueError:
        return None
    return one_line(sentence) or None
