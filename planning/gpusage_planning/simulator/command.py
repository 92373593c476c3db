"""`gpusage simulate`: what each policy would do to a trace, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import Progress

from gpusage.cli import tables
from gpusage.cli.user_file import page_origin, write_output
from gpusage.decisions.advisor import make_advisor
from gpusage.settings.configuration_file import read_configuration
from gpusage_planning.simulator import sweep
from gpusage_planning.simulator.max_min import ROUND_S
from gpusage_planning.simulator.report import COLUMNS, RATIO_COLUMNS, notes, page, ratio_row, row
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.scenario import USUAL
from gpusage_planning.simulator.source import Source, collect_last_month, scenario
from gpusage_planning.simulator.sweep import (
    PACKING,
    PREDICTED,
    PREEMPTIVE,
    ROUNDS,
    OrderSettings,
    Repeated,
    Task,
    order_notes,
)

SCHEMA = "gpusage.simulation/1"


def compare(
    output: Path | None,
    *,
    as_json: bool,
    policies: Sequence[str],
    seed: int,
    **how: Any,  # click's
) -> None:
    """Simulate each policy in each order on the same jobs, and show the figures side by side."""
    source, orders = source_of(how), _orders(how)
    _require_used(how, {one.name for one in orders})
    named = dict.fromkeys(_policies(policies, orders))
    chosen = [(policy, order) for policy in named for order in orders or (None,)]
    first = scenario(source, seed)  # what is wrong with a file is said here, before other processes begin
    seeds = range(seed, seed + how["repetitions"])
    tasks = [Task(source, policy, each, order) for each in seeds for policy, order in chosen]

    with progress_bar(len(first.jobs) * len(tasks)) as progress:
        results = _results(tasks, how["workers"], how["dask_address"], progress)
    rows = sweep.repeated(len(chosen), results)
    lines = [*notes(source, seed), *order_notes(orders), *_repetitions(rows)]
    if output is not None:
        write_output(output, page(rows, lines, page_origin()))
    if as_json:
        tables.print_json({"schema": SCHEMA, "notes": lines, "policies": [_document(one) for one in rows]})
        return

    tables.show_title(f"{len(first.jobs)} {'job' if len(first.jobs) == 1 else 'jobs'} on {first.fleet.gpu_count} GPUs")
    tables.show("")
    tables.show_filled(COLUMNS, [row(one) for one in rows])
    if len(rows) > 1:
        tables.show("")
        tables.show_filled(RATIO_COLUMNS, [ratio_row(one, rows[0]) for one in rows[1:]])
    tables.show("", *lines)


def _orders(how: Mapping[str, Any]) -> Sequence[OrderSettings]:
    error, preemption_s, round_s = how["duration_error"], how["preemption_s"], how["round_s"]
    fair = next((name for name in how["orders"] if name.startswith("max-min")), None)
    if fair and not preemption_s < (ROUND_S if round_s is None else round_s):
        message = (
            f"Order {fair!r} must have rounds that are longer than a suspended job takes to go on; got "
            f"{preemption_s:g} s. Use a longer --round-s or a shorter --preemption-s."
        )
        raise click.UsageError(message)

    return [
        OrderSettings(name=name, duration_error=error, preemption_s=preemption_s, round_s=round_s)
        for name in dict.fromkeys(how["orders"])
    ]


def _require_used(how: Mapping[str, Any], orders: set[str]) -> None:
    """Refuse an option that would change nothing."""
    is_drawn = how["jobs_file"] is None and not how["last_month"]
    uses = {
        "format_name": (how["jobs_file"] is not None, "--jobs"),
        "load": (is_drawn, "jobs drawn by chance"),
        "draw_models": (not is_drawn, "--jobs or --last-month"),
        "round_s": (orders & {*ROUNDS}, f"--order {', '.join(ROUNDS)}"),
        "preemption_s": (orders & {*PREEMPTIVE}, f"--order {', '.join(PREEMPTIVE)}"),
        "duration_error": (orders & {*PREDICTED}, f"--order {', '.join(PREDICTED)}"),
    }
    context = click.get_current_context()

    for parameter in context.command.params:
        is_used, partner = uses.get(parameter.name or "", (True, ""))
        if not is_used and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
            message = f"Option {parameter.opts[0]} must be with {partner}; got it without. Leave it out, or add that."
            raise click.UsageError(message)


def _policies(policies: Sequence[str], orders: Sequence[OrderSettings]) -> Sequence[str]:
    """Return the policies to simulate; where jobs are suspended, only such as say how much of a GPU a job takes."""
    preemptive = [one.name for one in orders if one.name in PREEMPTIVE]
    if not preemptive:
        return policies or USUAL

    packing = [name for name in policies if name in PACKING]
    if packing:
        message = (
            f"Order {preemptive[0]!r} must be with a policy that says how much of a GPU each job takes; got "
            f"{packing[0]!r}. Use 'slots' or 'price', or an order that suspends no jobs."
        )
        raise click.UsageError(message)
    return policies or [name for name in USUAL if name not in PACKING]


def source_of(how: Mapping[str, Any]) -> Source:
    """Return where jobs and GPUs come from, by the options *how*."""
    sources = {"--jobs": how["jobs_file"], "--last-month": how["last_month"] or None, "--generate": how["generate"]}
    named = [name for name, value in sources.items() if value is not None]
    if len(named) > 1:
        message = f"Jobs must come from one of {', '.join(sources)}; got {' and '.join(named)}. Leave all but one out."
        raise click.UsageError(message)

    month = None
    if how["last_month"]:
        advisor = make_advisor().configured(read_configuration()[0])
        month = collect_last_month(advisor, time.time(), how["cluster_file"])
    return Source(
        jobs_file=how["jobs_file"],
        format=how["format_name"],
        month=month,
        cluster_file=how["cluster_file"],
        count=how["generate"] or Source().count,
        load=how["load"],
        draws_models=how["draw_models"],
        pairs_file=how["pairs_file"],
        gpus_per_node=how["gpus_per_node"],
        spread=how["spread"],
    )


def _results(
    tasks: Sequence[Task], workers: int, dask_address: str | None, progress: Callable[[int], None]
) -> list[Result]:
    """Return the result of each task, in their order."""
    elsewhere: AbstractContextManager[Executor] | None = None
    if dask_address is not None:
        elsewhere = sweep.dask(dask_address)
    elif workers > 1:
        elsewhere = ProcessPoolExecutor(workers)
    results: list[Result] = []
    if elsewhere is None:
        for task in tasks:
            before = sum(len(one.jobs) for one in results)
            results.append(sweep.run(task, lambda ended, before=before: progress(before + ended)))  # type: ignore[misc]
        return results

    with elsewhere as pool:
        for result in pool.map(sweep.run, tasks):
            results.append(result)
            progress(sum(len(one.jobs) for one in results))

    return results


def _repetitions(rows: Sequence[Repeated]) -> Iterator[str]:
    count = len(rows[0].results)
    if count == 1:
        yield "Each policy was simulated once: another seed may show other figures, above all of broken promises."
    else:
        yield (
            f"Each policy was simulated {count} times, each time with other errors; figures are medians. Ratios have "
            "the smallest and the largest beside them. A median of ratios is not the ratio of two medians."
        )

    if any(one.broken for one in rows):
        yield (
            "Promises broken are those of all repetitions. In parentheses: Wilson's interval, which contains the true "
            "share in 9 of 10 cases; jobs of one kind count as one there, as one error of their prediction decides."
        )


@contextmanager
def progress_bar(total: int, what: str = "jobs") -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of *what* is done and shows it as a bar, if this is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda ended: bars.update(task, completed=ended)


def _document(repeated: Repeated) -> dict[str, Any]:
    broken = repeated.broken
    document = {
        "policy": repeated.policy,
        **asdict(repeated.figures),
        "broken_interval": None if broken is None else {"low": broken.low, "high": broken.high},
    }
    if len(repeated.results) > 1:
        document["repetitions"] = [asdict(one.figures) for one in repeated.results]
    return document
