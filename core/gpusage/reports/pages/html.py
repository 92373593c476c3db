"""The frame of every page, and its tables; this module escapes all text from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222;"
    "overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:.5rem 0;font-size:14px;overflow-wrap:normal}"
    "td,th{padding:.2rem .4rem;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left;min-width:9rem}"
    "svg{background:#fafafa;max-width:100%}small{color:#555}figure{margin:1rem 0}"
    ".table{overflow-x:auto}td+td{white-space:nowrap}.plots{display:flex;flex-wrap:wrap;gap:0 2rem}"
    ".plot{overflow-x:auto}.plot svg{max-width:none}dt{font-weight:600}dd{margin:0 0 .4rem 1rem}"
    "nav ul{columns:2 16rem;padding-left:1.2rem}code{overflow-wrap:anywhere}"
    "@media(max-width:40rem){body{margin:1rem auto}.wide::before{content:'wider than the screen: "
    "scroll \\2192';display:block;font-size:12px;color:#777}"
    "td:first-child,th:first-child{min-width:6rem;position:sticky;left:0;background:#fff}"
    ".long th{display:none}.long table,.long tbody,.long tr{display:block}.long tr{padding:.4rem 0}"
    ".long td{display:flex;gap:1rem;"
    "justify-content:space-between;white-space:normal;border:0}.long td:first-child{font-weight:600}"
    ".long td+td::before{content:attr(data-name);color:#555}}"
)

NARROW_COLUMNS = 4
"""A table of so many columns fits a telephone's screen."""
SCREEN = "<meta name='viewport' content='width=device-width'>"
"""A telephone's screen counts as narrow as it is; a table that is wider scrolls by itself."""
_UNSEEN = dict.fromkeys((*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "?")
"""Control characters in the names of users and models, and those that turn the writing; `cat` shows pages, too."""
del _UNSEEN[ord("\n")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a page is from.

    Attributes:
        version: Version of gpusage.
        date: Date of the page, for people.
        command: Command line that made the page.
    """

    version: str
    date: str
    command: str


def page(title: str, body: str, origin: Origin | None = None) -> str:
    """Return a whole page around the HTML *body*."""
    head = f"<meta charset='utf-8'>{SCREEN}<title>{escape(title)}</title><style>{STYLE}</style>"
    top = f"<h1>{escape(title)}</h1>"
    if origin:
        words = f"gpusage {escape(origin.version)}, {escape(origin.date)}: <code>{escape(origin.command)}</code>"
        top += f"<p><small>{words}</small></p>"

    # Over the whole page, so that no caller can forget a name: markup has no control characters of its own.
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{top}{body}</body></html>\n".translate(_UNSEEN)


def contents(titles: Iterable[tuple[str, str]]) -> str:
    """Return links to the headings of a page, each an anchor and its title."""
    items = "".join(f"<li><a href='#{escape(anchor)}'>{escape(title)}</a></li>" for anchor, title in titles)
    return f"<nav><ul>{items}</ul></nav>"


def heading(level: int, anchor: str, title: str) -> str:
    """Return a heading that `contents` can link to."""
    return f"<h{level} id='{escape(anchor)}'>{escape(title)}</h{level}>"


def definitions(terms: Mapping[str, str]) -> str:
    """Return a list of *terms* with their meanings."""
    items = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in terms.items())
    return f"<dl>{items}</dl>"


def table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts."""
    names = [*columns]
    # A wide table stands on a telephone with a line per cell, which begins with its column's name.
    is_wide = len(names) > NARROW_COLUMNS
    labels = [f" data-name='{escape(name)}'" if is_wide else "" for name in names]
    body = ""
    for row in rows:
        cells = (f"<td{label}>{escape(cell)}</td>" for label, cell in zip(labels, row, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f"<div class='table{' long' if is_wide else ''}'><table><tr>{head}</tr>{body}</table></div>"


def notes(sentences: Iterable[str]) -> str:
    """Return a list of *sentences*; empty without any."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def figure(plot: str, caption: str) -> str:
    """Return a plot with its caption below."""
    return f"<figure>{plot}<figcaption><small>{escape(caption)}</small></figcaption></figure>"


def wide(svg: str) -> str:
    """Return a plot that keeps its size, and scrolls by itself where the screen is narrower."""
    return f"<div class='plot wide'>{svg}</div>"
