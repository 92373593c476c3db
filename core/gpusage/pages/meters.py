"""Bars of HTML alone: a label, its value, and a bar of parts below them; readable on a telephone's screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from gpusage.pages.bars import Bar

STYLE = (
    ".meter{margin:.4rem 0;max-width:44rem}.meter>div:first-child{display:flex;justify-content:space-between;gap:1rem;"
    "overflow-wrap:anywhere}.meter>div+div{display:flex;height:12px;background:#eee}"
)


def meters(bars: Sequence[Bar], colours: Mapping[str, str]) -> str:
    """Return *bars* one below the other, the longest as wide as the page lets it be."""
    longest = max((bar.length for bar in bars), default=0.0) or 1.0
    return f"<style>{STYLE}</style>{''.join(_meter(bar, longest, colours) for bar in bars)}"


def _meter(bar: Bar, longest: float, colours: Mapping[str, str]) -> str:
    parts = "".join(_part(name, part / longest, colours[name]) for name, part in bar.parts)
    words = f"<div><span>{escape(bar.label)}</span><span>{escape(bar.text)}</span></div>"
    return f"<div class='meter'>{words}<div>{parts}</div></div>"


def _part(name: str, share: float, colour: str) -> str:
    style = f"width:{100 * max(share, 0.0):.2f}%;background:{colour}"
    return f"<div title='{escape(name)}' style='{style}'></div>"
