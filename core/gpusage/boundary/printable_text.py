"""Text of users, model files and daemons as it may be shown: nothing in it acts on a terminal, a log or a database."""

from __future__ import annotations

ELLIPSIS = "..."


def visible(text: str) -> str:
    """Return *text* with a question mark for each character that does not print, line breaks included."""
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)


def visible_lines(text: str) -> str:
    """Return *text* as `visible` does, but with its line breaks."""
    return "\n".join(map(visible, text.split("\n")))


def one_line(text: str) -> str:
    """Return *text* on one line: line breaks, tabs and runs of spaces are one space, the rest is made visible."""
    return visible(" ".join(text.split()))


def ascii_line(text: str) -> str:
    """Return *text* in printable ASCII, with a question mark for every other character."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if " " <= character <= "~" else "?" for character in text)


def with_end(sentence: str) -> str:
    """Return *sentence* with a full stop, if it has no end yet."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def shortened(text: str, maximum: int) -> str:
    """Return *text*, no longer than *maximum* characters; an ellipsis ends what was cut off."""
    return text if len(text) <= maximum else text[: maximum - len(ELLIPSIS)] + ELLIPSIS
