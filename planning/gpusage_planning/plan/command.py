"""`gpusage plan`: reads the two files, plans, and shows the plan."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from gpusage.cli import tables
from gpusage.cli.documents import rounded
from gpusage.cli.user_file import page_origin, write_output
from gpusage.decisions.advisor import advisor
from gpusage.reports.pages import html
from gpusage_planning import gantt
from gpusage_planning.capacity.plan import SCHEMA, Plan
from gpusage_planning.capacity.problem import Assignment, NodeGroup
from gpusage_planning.capacity.whole import RULES, Watch, whole_plan
from gpusage_planning.plan.files import read_lines, read_nodes
from gpusage_planning.plan.times import planned

SHOWN_JOBS = 40
LEAST_COST = 0.005
"""Less is shown as 0.00."""
COLUMNS = tables.columns("job", "node", "type", "GPUs", "start", "end", "late", optional=("late",))


def plan(  # noqa: PLR0913 - an option each
    jobs_file: Path | None,
    cluster_file: Path | None,
    output: Path | None,
    limit_s: float,
    time_limit_s: float | None,
    budget: float | None,
    *,
    as_json: bool,
) -> None:
    """Plan which nodes are active, and which jobs have their GPUs, and when."""
    if click.get_current_context().invoked_subcommand:
        return
    if jobs_file is None or cluster_file is None:
        message = "Options --jobs and --cluster must be given; got one or none of them. Name both files."
        raise click.UsageError(message)
    groups = read_nodes(cluster_file)
    jobs = planned(read_lines(jobs_file), groups, advisor(), jobs_file.parent)
    from gpusage_planning.capacity.decision import decide  # the extra [plan]
    from gpusage_planning.capacity.mixed_integer import Limits

    limits = Limits(time_s=limit_s)
    with _watch(time_limit_s) as watch:
        best, others = whole_plan(jobs, groups, lambda state: decide(state, limits), watch)
    is_within, summary = _is_within(best, budget), _summary(best, others, budget)
    if output is not None:
        _write(output, best, summary)
    if as_json:
        tables.print_json({**_document(best, others, groups), "budget": budget, "within_budget": is_within})
    else:
        _show(best, summary)
    click.get_current_context().exit(0 if is_within else 1)


def _is_within(best: Plan, budget: float | None) -> bool:
    """Return whether the plan costs no more than *budget*, in hundredths, as both are shown."""
    return budget is None or round(best.cost, 2) <= round(budget, 2)


@contextmanager
def _watch(time_limit_s: float | None) -> Iterator[Watch]:
    """Yield what looks at the clock, and draws a progress bar on a terminal."""
    console, start_s = Console(stderr=True), time.monotonic()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("planning", total=1.0)
        yield Watch(
            spent=lambda: (time.monotonic() - start_s) / time_limit_s if time_limit_s else 0.0,
            report=lambda done: bar.update(task, completed=done),
        )


def _document(best: Plan, others: Mapping[str, Plan], groups: Sequence[NodeGroup]) -> dict[str, Any]:
    active = {each.node for each in best.active}
    return {
        "schema": SCHEMA,
        "planned_at_s": int(time.time()),
        "cost": rounded(best.cost),
        "node_cost": rounded(best.node_cost),
        "boot_cost": rounded(best.boot_cost),
        "unused_cost": rounded(best.unused_cost),
        "late_cost": rounded(best.late_cost),
        "gap": None if best.gap is None else rounded(best.gap),
        "bound": rounded(best.bound),
        "end_s": rounded(best.end_s),
        "rules": {name: rounded(each.cost) for name, each in others.items()},
        "jobs": [_assignment(each) for each in best.assignments],
        "nodes": [
            {
                "node": each.node,
                "type": each.type.name,
                "start_s": rounded(each.start_s),
                "ready_s": rounded(each.ready_s),
                "end_s": rounded(each.end_s),
                "billed_s": rounded(each.billed_s),
                "cost": rounded(each.cost),
            }
            for each in best.active
        ],
        "unused_nodes": [name for group in groups for name in group.node_names if name not in active],
    }


def _assignment(each: Assignment) -> dict[str, Any]:
    return {
        "job": each.job.name,
        "node": each.node,
        "type": each.option.type.name,
        "gpu": each.option.type.gpu,
        "gpus": each.option.gpu_count,
        "start_s": rounded(each.start_s),
        "end_s": rounded(each.end_s),
        "deadline_s": each.job.deadline_s,
        "late_cost": rounded(each.job.late_cost(each.end_s)),
    }


def _show(best: Plan, summary: Sequence[str]) -> None:
    nodes = len({each.node for each in best.active})
    jobs = len(best.assignments)
    tables.show_title(f"{jobs} job{'s' * (jobs != 1)} on {nodes} node{'s' * (nodes != 1)}")
    tables.show("")
    tables.show_rows(COLUMNS, [_cells(each) for each in best.assignments[:SHOWN_JOBS]])
    if len(best.assignments) > SHOWN_JOBS:
        tables.show(f"... and {len(best.assignments) - SHOWN_JOBS} more; --json has them all.")
    tables.show("", *summary)


def _cells(each: Assignment) -> list[str]:
    late_s = max(each.end_s - each.job.latest_end_s, 0.0)
    return [
        each.job.name,
        each.node,
        each.option.type.name,
        str(each.option.gpu_count),
        _time(each.start_s),
        _time(each.end_s),
        _time(late_s) if late_s else "",
    ]


def _time(value_s: float) -> str:
    return tables.seconds_text(value_s) if value_s else "0 s"


def _summary(best: Plan, others: Mapping[str, Plan], budget: float | None) -> list[str]:
    """Return what the plan costs, how good it is, and what the plain rules would cost, one line each."""
    rules = ", ".join(f"{name}: {others[name].cost:.2f}" for name in RULES)
    lines = [
        f"It costs {best.cost:.2f}: nodes {best.node_cost:.2f}{_bill(best)}, lateness {best.late_cost:.2f}.",
        f"The last job ends after {tables.seconds_text(best.end_s)}.",
        f"By plain rules it would cost: {rules}.",
    ]
    if best.gap is not None:
        bound = f"No plan can cost less than {best.bound:.2f}, which is {100 * best.gap:.1f} % less (optimality gap)."
        lines.insert(2, bound)
    if not _is_within(best, budget):
        lines.insert(
            0, f"No plan was found within the budget of {budget:.2f}; the least cost found is {best.cost:.2f}."
        )

    return lines


def _bill(best: Plan) -> str:
    """Return what of the nodes' price is for no work, in parentheses; nothing where all is."""
    parts = [("booting", best.boot_cost), ("billed after they were switched off", best.unused_cost)]
    words = ", ".join(f"{name} {cost:.2f}" for name, cost in parts if cost > LEAST_COST)
    return f" ({words})" if words else ""


def _write(path: Path, best: Plan, summary: Sequence[str]) -> None:
    bars = [
        gantt.Bar(
            row=each.node, label=each.job.name, start_s=each.start_s, end_s=each.end_s, height=each.option.gpu_count
        )
        for each in best.assignments
    ]
    line_counts: dict[str, int] = {}

    for on in best.active:
        line_counts[on.node] = max(line_counts.get(on.node, 0), on.type.gpu_count)
    body = html.notes(summary)
    body += html.figure(
        html.wide(gantt.chart(bars, line_counts)), "Each line is a GPU of an active node; the time runs to the right."
    )
    body += html.table([column.title for column in COLUMNS], [_cells(each) for each in best.assignments])
    write_output(path, html.page("A plan of gpusage", body, page_origin()))
