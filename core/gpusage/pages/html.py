"""The frame of every page, and its tables; whatever comes from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:.5rem 0;font-size:14px}td,th{padding:.2rem .4rem;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left;min-width:9rem}"
    "svg{background:#fafafa;max-width:100%}small{color:#555}figure{margin:1rem 0}"
    ".table{overflow-x:auto}td+td{white-space:nowrap}.plots{display:flex;flex-wrap:wrap;gap:0 2rem}"
)

SCREEN = "<meta name='viewport' content='width=device-width'>"
"""A telephone's screen counts as narrow as it is; a table that is wider scrolls by itself."""


def page(title: str, body: str) -> str:
    """Return a whole page; *body* is HTML."""
    head = f"<meta charset='utf-8'>{SCREEN}<title>{escape(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>\n"


def table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class='table'><table><tr>{head}</tr>{body}</table></div>"


def notes(sentences: Iterable[str]) -> str:
    """Return a list of sentences, nothing where there is none."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def figure(svg: str, caption: str) -> str:
    """Return a plot with what it shows below it."""
    return f"<figure>{svg}<figcaption><small>{escape(caption)}</small></figcaption></figure>"
