"""Bars of stacked parts: side by side as SVG, or in a column as HTML that a telephone can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

HEIGHT, WIDTH, MARGIN = 200.0, 880.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of stacked *parts*, each with the name of its colour; *text* appears under the pointer."""

    label: str
    text: str
    parts: Sequence[tuple[str, float]]

    @property
    def length(self) -> float:
        """Return the sum of the parts; a part below 0 is not drawn."""
        return sum(max(part, 0.0) for _, part in self.parts)


def sequence(bars: Sequence[Bar], colours: Mapping[str, str]) -> str:
    """Return upright bars side by side in their order, with the name of the highest bar."""
    # 1.0 where all bars are empty, so that nothing is divided by 0.
    highest = max((bar.length for bar in bars), default=0.0) or 1.0
    step = (WIDTH - 2 * MARGIN) / max(len(bars), 1)

    drawn = []
    for number, bar in enumerate(bars):
        foot, parts = HEIGHT - MARGIN, []
        for name, part in bar.parts:
            height = max(part, 0.0) / highest * (HEIGHT - 2 * MARGIN)
            # SVG counts y from the top, so a stack grows downwards in y.
            foot -= height
            at = f"x='{MARGIN + number * step:.1f}' y='{foot:.1f}' width='{0.9 * step:.2f}' height='{height:.1f}'"
            parts.append(f"<rect {at} fill='{colours[name]}'/>")
        drawn.append(f"<g><title>{escape(f'{bar.label}: {bar.text}')}</title>{''.join(parts)}</g>")

    named = max(bars, key=lambda bar: bar.length, default=Bar(label="nothing", text="0", parts=()))
    scale = f"highest: {named.label}: {named.text}"
    drawn.append(f"<text x='{MARGIN}' y='14' font-size='12'>{escape(scale)}</text>")
    return f"<svg viewBox='0 0 {WIDTH:.0f} {HEIGHT:.0f}' width='{WIDTH:.0f}' role='img'>{''.join(drawn)}</svg>"


def legend(colours: Mapping[str, str]) -> str:
    """Return the legend of *colours*."""
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
    """Return *bars* in a column, the longest as wide as the page lets it be."""
    longest = max((bar.length for bar in bars), default=0.0) or 1.0
    drawn = []
    for bar in bars:
        parts = []
        for name, part in bar.parts:
            # Widths in percent: a telephone's screen has no fixed size.
            style = f"width:{100 * max(part / longest, 0.0):.2f}%;background:{colours[name]}"
            parts.append(f"<div title='{escape(name)}' style='{style}'></div>")
        words = f"<div><span>{escape(bar.label)}</span><span>{escape(bar.text)}</span></div>"
        drawn.append(f"<div class='meter'>{words}<div>{''.join(parts)}</div></div>")
    return f"<style>{STYLE}</style>{''.join(drawn)}"
