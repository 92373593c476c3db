"""`gpusage slurm power`: reads the plan, looks at the nodes, and shows or does what is due."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpusage.cli import figures, tables
from gpusage_slurm import scontrol
from gpusage_slurm.power.nodes import read_nodes
from gpusage_slurm.power.planned import read_times
from gpusage_slurm.power.slurm import carry_out, require_power_saving
from gpusage_slurm.power.steps import Step, steps

COLUMNS = tuple(tables.Column(title, is_left=True) for title in ("node", "now", "what", "why"))


def power(plan_file: Path, *, yes: bool, as_json: bool) -> None:
    """Show which nodes the plan has suspended and resumed now; with --yes, have Slurm do so."""
    now_s = time.time()
    times = read_times(plan_file, now_s)
    settings = scontrol.configuration()
    delays = require_power_saving(settings)
    due = steps(times, read_nodes(settings), delays, now_s)
    if yes:
        carry_out(due, settings)
    next_in_s = times.next_change_s(now_s, delays.resume_s) - now_s
    if as_json:
        tables.print_json(document(due, next_in_s, applied=yes))
        return
    tables.show_rows(COLUMNS, [[step.node, step.power, step.action, step.why] for step in due])
    tables.show("", *lines(due, next_in_s, applied=yes))


def document(due: Sequence[Step], next_in_s: float, *, applied: bool) -> Mapping[str, Any]:
    """Return what `gpusage slurm power --json` prints."""
    return {
        "schema": "gpusage.slurm.power/1",
        "applied": applied,
        "next_change_in_s": None if next_in_s == float("inf") else round(next_in_s),
        "nodes": [asdict(step) for step in due],
    }


def lines(due: Sequence[Step], next_in_s: float, *, applied: bool) -> Iterator[str]:
    """Yield what stands below the table."""
    counts = Counter(step.action for step in due if step.action != "leave")
    parts = [f"{count} to {action}" for action, count in counts.items()]
    if not parts:
        yield "Nothing to do now."
    elif applied:
        yield f"Slurm was asked: {', '.join(parts)}."
    else:
        yield f"{', '.join(parts).capitalize()}. Add --yes to have Slurm do it."
    if next_in_s < float("inf"):
        yield f"The plan's next change comes in {figures.duration(next_in_s)}: run this again by then, such as by cron."
