"""Bars of stacked parts: side by side as SVG, or one below the other as HTML that a telephone can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

HEIGHT, WIDTH, MARGIN = 200.0, 880.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of stacked *parts*, each with the name of its colour; *text* says what it is when pointed at."""

    label: str
    text: str
    parts: Sequence[tuple[str, float]]

    @property
    def length(self) -> float:
        """Return what the parts add up to; a part below 0 is not drawn."""
        return sum(max(part, 0.0) for _, part in self.parts)


def sequence(bars: Sequence[Bar], colours: Mapping[str, str]) -> str:
    """Return upright bars side by side, from the first to the last; the highest is named."""
    highest = max((bar.length for bar in bars), default=0.0) or 1.0
    step = (WIDTH - 2 * MARGIN) / max(len(bars), 1)
    drawn = []
    for number, bar in enumerate(bars):
        foot, parts = HEIGHT - MARGIN, []
        for name, part in bar.parts:
            height = max(part, 0.0) / highest * (HEIGHT - 2 * MARGIN)
            foot -= height
            at = f"x='{MARGIN + number * step:.1f}' y='{foot:.1f}' width='{0.9 * step:.2f}' height='{height:.1f}'"
            parts.append(f"<rect {at} fill='{colours[name]}'/>")
        drawn.append(f"<g><title>{escape(f'{bar.label}: {bar.text}')}</title>{''.join(parts)}</g>")
    named = max(bars, key=lambda bar: bar.length, default=Bar(label="nothing", text="0", parts=()))
    scale = f"highest: {named.label}: {named.text}"
    drawn.append(f"<text x='{MARGIN}' y='14' font-size='12'>{escape(scale)}</text>")
    return f"<svg viewBox='0 0 {WIDTH:.0f} {HEIGHT:.0f}' width='{WIDTH:.0f}' role='img'>{''.join(drawn)}</svg>"


def legend(colours: Mapping[str, str]) -> str:
    """Return what each colour stands for."""
    style = "margin-right:1rem;white-space:nowrap;display:inline-block"
    items = "".join(
        f"<span style='{style}'><span style='color:{colour}'>&#9632;</span> {escape(name)}</span>"
        for name, colour in colours.items()
    )
    return f"<p><small>{items}</small></p>"


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
