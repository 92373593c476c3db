"""Two Gantt charts side by side, without gpusage and with it; real ones above, simulated ones below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpusage.reports.pages import html
from gpusage_planning import gantt
from gpusage_planning.replay.comparison import COLUMNS, STATES
from gpusage_planning.replay.virtual_gpus import Stay
from gpusage_planning.simulator.result import Result

COMPARISON = "display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1rem"
WORDS = {"off": "gpusage off: whole GPUs", "on": "gpusage on: shares"}


def page(
    title: str,
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    charts: Mapping[str, Mapping[str, Sequence[Stay]]],
    gpus: Sequence[tuple[str, int]],
) -> str:
    """Return the page.

    Args:
        title: Of the page.
        rows: The cells of the table, in the order of `COLUMNS`.
        notes: Sentences below it.
        charts: What is drawn, by title and state.
        gpus: Nodes and devices, in the order in which they are drawn.
    """
    body = html.table(COLUMNS, rows) + html.notes(notes)
    until_s = max(stay.end_s for states in charts.values() for stays in states.values() for stay in stays)
    for name, states in charts.items():
        drawn = "".join(
            html.figure(chart(states[state], gpus, until_s), f"{name}, {WORDS[state]}; first repetition")
            for state in STATES
        )
        body += f"<div style='{COMPARISON}'>{drawn}</div>"
    return html.page(title, body)


def chart(stays: Sequence[Stay], gpus: Sequence[tuple[str, int]], until_s: float) -> str:
    """Return one band per GPU with as many lines as it had jobs at once."""
    bars = [
        gantt.Bar(row=_name(stay.node, stay.device), label=label(stay), start_s=stay.start_s, end_s=stay.end_s)
        for stay in stays
    ]
    job_counts = {
        _name(*gpu): max(most_at_once([stay for stay in stays if (stay.node, stay.device) == gpu]), 1) for gpu in gpus
    }
    return gantt.chart(bars, job_counts, until_s)


def most_at_once(stays: Iterable[Stay]) -> int:
    """Return the largest number of *stays* that overlap; one that ends when another starts does not."""
    events = sorted(event for stay in stays for event in ((stay.start_s, 1), (stay.end_s, -1)))
    most = here = 0
    for _, change in events:
        here += change
        most = max(most, here)
    return most


def label(stay: Stay) -> str:
    """Return the job's number, and how it ended where its work was not done."""
    return f"{stay.job}" if stay.ending == "done" else f"{stay.job} ({stay.ending.replace('_', ' ')})"


def simulated_stays(result: Result, gpus: Sequence[tuple[str, int]]) -> list[Stay]:
    """Return each job's last stay on *gpus*, in the simulator's order; it keeps no others."""
    return [
        Stay(job=job, node=gpus[gpu][0], device=gpus[gpu][1], start_s=start_s, end_s=end_s, ending="done")
        for job, (gpu, start_s, end_s) in enumerate(
            zip(result.gpu.tolist(), result.last_start_s.tolist(), result.end_s.tolist(), strict=True)
        )
    ]


def _name(node: str, device: int) -> str:
    return f"{node} {device}"
