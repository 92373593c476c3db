"""Text of users, model files and daemons, made harmless for a terminal, a log and a database."""

from __future__ import annotations

ELLIPSIS = "..."


def visible(text: str) -> str:
    """Return *text* with a question mark for each character that does not print, line breaks included."""
    # One call in C for nearly all texts: an answer to a submission passes here several times.
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)


def visible_lines(text: str) -> str:
    """Return *text* with a question mark for each character that does not print, except its line breaks."""
    return "\n".join(map(visible, text.split("\n")))


def one_line(text: str) -> str:
    """Return *text* on one line, with one space for each run of white space, and otherwise as `visible` does."""
    return visible(" ".join(text.split()))


def ascii_line(text: str) -> str:
    """Return *text* in printable ASCII, with a question mark for every other character."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if " " <= character <= "~" else "?" for character in text)


def with_end(sentence: str) -> str:
    """Return *sentence* with a full stop at its end."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def shortened(text: str, maximum: int) -> str:
    """Return *text*, cut to *maximum* characters with an ellipsis at its end."""
    return text if len(text) <= maximum else text[: maximum - len(ELLIPSIS)] + ELLIPSIS
