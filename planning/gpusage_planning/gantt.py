"""Gantt charts as SVG: one band per node, one line per GPU, one bar per job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil

from gpusage_hooks.units import DAY_S, HOUR_S

WIDTH, LEFT, LINE, GAP, TOP = 1000.0, 140.0, 16.0, 6.0, 20.0
TICKS = 6
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800, *(hours * HOUR_S for hours in (1, 2, 3, 6, 12)))
COLOURS = ("#27609c", "#c2571a", "#3d8a3d", "#8a3d7a", "#9c8427", "#3d8a8a", "#a33b3b", "#5b5ba8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A job on *height* lines of the band *row*, from one time to another."""

    row: str
    label: str
    start_s: float
    end_s: float
    height: int = 1


def chart(bars: Sequence[Bar], line_counts: Mapping[str, int]) -> str:
    """Return the chart.

    Args:
        bars: In any order.
        line_counts: How many lines each band needs, in the order in which they are drawn.
    """
    end_s = max(bar.end_s for bar in bars) or 1.0
    tops, foot = {}, TOP
    for row, height in line_counts.items():
        tops[row] = foot
        foot += height * LINE + GAP

    drawn = [*_bands(tops, line_counts), *_ticks(end_s, foot)]
    for number, (bar, lines) in enumerate(_placed(bars, line_counts)):
        drawn.append(_bar(bar, lines, tops[bar.row], end_s, COLOURS[number % len(COLOURS)]))
    return f"<svg viewBox='0 0 {WIDTH:.0f} {foot + 24:.0f}' width='{WIDTH:.0f}' role='img'>{''.join(drawn)}</svg>"


def _placed(bars: Sequence[Bar], line_counts: Mapping[str, int]) -> Iterator[tuple[Bar, list[int]]]:
    """Yield each bar with lines of its band that are free by then."""
    free = {row: [0.0] * height for row, height in line_counts.items()}
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.row, -bar.height)):
        ends = free[bar.row]
        lines = sorted(range(len(ends)), key=lambda line: (ends[line] > bar.start_s, line))[: bar.height]
        for line in lines:
            ends[line] = bar.end_s
        yield bar, lines


def _bar(bar: Bar, lines: Sequence[int], top: float, end_s: float, colour: str) -> str:
    left, right = _x(bar.start_s, end_s), _x(bar.end_s, end_s)
    width = max(right - left, 0.5)
    gpus = "1 GPU" if len(lines) == 1 else f"{len(lines)} GPUs"
    words = f"{bar.label}: {bar.start_s / HOUR_S:.2f} h to {bar.end_s / HOUR_S:.2f} h, {gpus}"
    style = f"width='{width:.1f}' height='{LINE - 2:.0f}' fill='{colour}'"
    boxes = "".join(f"<rect x='{left:.1f}' y='{top + line * LINE:.1f}' {style}/>" for line in lines)
    label = f"<text x='{left + 3:.1f}' y='{top + lines[0] * LINE + 11:.1f}' font-size='10' fill='#fff'>"
    fits = (right - left) > 7.0 * len(bar.label)

    return f"<g><title>{escape(words)}</title>{boxes}{f'{label}{escape(bar.label)}</text>' if fits else ''}</g>"


def _bands(tops: Mapping[str, float], line_counts: Mapping[str, int]) -> Iterator[str]:
    for row, top in tops.items():
        height, style = line_counts[row] * LINE, "text-anchor='end' font-size='12'"
        yield f"<rect x='{LEFT}' y='{top:.1f}' width='{WIDTH - LEFT:.0f}' height='{height:.1f}' fill='#eee'/>"
        yield f"<text x='{LEFT - 8}' y='{top + height / 2 + 4:.1f}' {style}>{escape(row)}</text>"


def _ticks(end_s: float, foot: float) -> Iterator[str]:
    step_s = next((each for each in STEPS_S if end_s <= TICKS * each), DAY_S * ceil(end_s / TICKS / DAY_S))
    units = (("d", DAY_S), ("h", HOUR_S), ("min", 60.0), ("s", 1.0))
    unit, unit_s = next((unit, unit_s) for unit, unit_s in units if step_s >= unit_s)
    for number in range(int(end_s / step_s) + 1):
        x = _x(number * step_s, end_s)
        anchor = "end" if x > WIDTH - LINE else "middle"
        yield (
            f"<path d='M{x:.1f} {TOP}V{foot:.1f}' stroke='#ccc'/><text x='{x:.1f}' y='{foot + 14:.1f}' "
            f"text-anchor='{anchor}' font-size='11'>{number * step_s / unit_s:.0f} {unit}</text>"
        )


def _x(time_s: float, end_s: float) -> float:
    return LEFT + (WIDTH - LEFT) * time_s / end_s
