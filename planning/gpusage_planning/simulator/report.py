"""Results side by side: a row for each policy, a page with plots, and what the figures rest on, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np

from gpusage.cli import tables
from gpusage.reports.pages import bars, html
from gpusage_hooks.units import HOUR_S, WHOLE_PERCENT
from gpusage_planning.capacity.problem import LONGEST_DAYS
from gpusage_planning.simulator.formats import OWN
from gpusage_planning.simulator.result import Figures, Result
from gpusage_planning.simulator.scenario import Scenario
from gpusage_planning.simulator.source import Files, Source, files_of, scenario
from gpusage_planning.simulator.sweep import Repeated
from gpusage_planning.simulator.truth import Measured

UNUSUAL_DAYS = 7
"""In public traces half of the jobs run for minutes or hours; milliseconds that are read as seconds make it days."""


def notes(source: Source, seed: int) -> Iterator[str]:
    """Yield what the figures of *source* rest on."""
    files, drawn = files_of(source), scenario(source, seed)
    yield from job_notes(source, files, seed)
    yield from _cluster_notes(source, files)

    yield from model_notes(source, drawn)
    if drawn.measured_pairs is not None:
        yield _pairs_note(drawn.measured_pairs)

    yield "What happens is predicted, with errors as large as the intervals; lab/docs/simulator.md has all assumptions."
    unmeasured = [one.name for one in files.fleet.types if one.power_w is None]
    if unmeasured:
        yield f"No energy: the cluster file has no measured power_w and idle_power_w of {', '.join(unmeasured)}."


def model_notes(source: Source, drawn: Scenario) -> Iterator[str]:
    """Yield of which jobs the models are known."""
    if source.draws_models and (source.jobs_file or source.month):
        yield "Jobs without a model have one drawn by chance: one for each user, GPU type and number of GPUs."
    unreadable = [*drawn.models.unreadable.values()]
    if unreadable:
        named = len(unreadable) + len(drawn.models.graphs)
        first = f"The first: {unreadable[0]}"
        yield f"{len(unreadable)} of {named} models cannot be read: their jobs count as without a model. {first}"
    if any(kind.model is None for kind in drawn.jobs.kinds):
        yield "Jobs without a model run alike on all GPU types and get what they ask for, as in production."
    if all(kind.model is None for kind in drawn.jobs.kinds):
        yield "No job has a model, so policies have nothing to decide; --draw-models draws models by chance."


def job_notes(source: Source, files: Files, seed: int) -> Iterator[str]:
    """Yield where the jobs come from, and which of them are left out."""
    trace = files.trace
    if trace is None:
        yield f"The jobs are drawn by chance, seed {seed}; --jobs FILE takes your own."
        return

    if source.month is not None:
        yield source.month.note
    if trace.left_out:
        why = f"asked for no GPU, never ran to an end or ran for more than {LONGEST_DAYS} days"
        yield f"Jobs that {why} are left out: {trace.left_out}."
    if trace.elsewhere:
        gpus = ", ".join(f"{count} on {gpus}" for gpus, count in trace.elsewhere.most_common())
        yield f"Jobs on GPUs that the cluster does not have are left out: {gpus}."
    if files.format is not None and files.format.name != OWN:
        yield " ".join(filter(None, (f"The jobs are read as of format {files.format.name}.", files.format.note)))
    if len(trace.jobs) and np.median(trace.jobs.work_s) > UNUSUAL_DAYS * 24 * HOUR_S:
        yield f"Half of the jobs run for more than {UNUSUAL_DAYS} days. Are run times in milliseconds? Write seconds."
    if any(kind.share_percent < WHOLE_PERCENT for kind in trace.jobs.kinds):
        yield "Jobs that ask for a part of a GPU have that part under every policy, and the time that they took on it."


def _cluster_notes(source: Source, files: Files) -> Iterator[str]:
    if source.gpus_per_node is not None and all(one.node_gpu_counts for one in files.fleet.types):
        yield "Option --gpus-per-node changes nothing: the cluster's file has the nodes of all types."
    if files.undivided:
        yield f"GPUs of {', '.join(files.undivided)} are not divided today; here they are, into 100 shares each."
        yield from files.fleet.cluster.notes

    for one in files.fleet.types:
        if len(one.node_gpu_counts) > 1:
            counts = " or ".join(map(str, one.node_gpu_counts))
            size = f"each has {one.gpus_per_node}" if one.gpus_per_node else "all GPUs are in one node"
            yield f"Nodes of {one.name} have {counts} GPUs; here {size}."


def _pairs_note(measured: Measured) -> str:
    """Return how many of a file's pairs are of the jobs; a model that is written otherwise is none of them."""
    if not measured.used_count:
        return (
            f"None of the {measured.pair_count} measured pairs is of these jobs: 'model' and 'beside' must name their "
            "models with the same options, and 'gpu_type' a type of this cluster."
        )
    count = f"{measured.used_count} of {measured.pair_count} measured pairs"
    return f"{count} are of these jobs, which are as slow beside each other as measured. Policies do not see this."


COLOURS = {"value": "#27609c"}
SLICES = 60
"""Bars of a plot over time."""


def _long(seconds: float) -> str:
    """Return a time for people: seconds, minutes, hours or days."""
    for unit, length, least in (("d", 86400.0, 2), ("h", 3600.0, 1), ("min", 60.0, 2)):
        if seconds >= least * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


BROKEN = "promises broken"
FIGURES: Sequence[tuple[tables.Column, Callable[[Figures], str]]] = (
    (tables.Column("makespan"), lambda one: _long(one.makespan_s)),
    (tables.Column("mean JCT"), lambda one: _long(one.jct_s)),
    (tables.Column("p95 JCT", is_optional=True), lambda one: _long(one.jct_p95_s)),
    (tables.Column("mean wait"), lambda one: _long(one.wait_s)),
    (tables.Column("p95 wait", is_optional=True), lambda one: _long(one.wait_p95_s)),
    (tables.Column("utilization"), lambda one: _percent(one.utilization)),
    (tables.Column("GPU hours"), lambda one: f"{one.gpu_hours:.0f}"),
    (tables.Column("energy"), lambda one: "" if one.energy_kwh is None else f"{one.energy_kwh:.1f} kWh"),
    (tables.Column("shared time"), lambda one: _percent(one.shared_time)),
    (tables.Column(BROKEN), lambda one: _percent(one.broken)),
    (tables.Column("out of memory"), lambda one: str(one.out_of_memory)),
    (tables.Column("preemptions", is_optional=True), lambda one: str(one.preemptions or "")),
    (tables.Column("fragmented", is_optional=True), lambda one: _percent(one.fragmentation)),
    (tables.Column("fairness", is_optional=True), lambda one: f"{one.fairness:.2f}"),
    (tables.Column("most starts on one GPU", is_optional=True), lambda one: _percent(one.most_on_one_gpu)),
)
COLUMNS = (tables.Column("policy", is_left=True), *(column for column, _ in FIGURES))
PLOTTED: Sequence[tuple[str, Callable[[Figures], float], Callable[[float], str]]] = (
    ("Makespan", lambda one: one.makespan_s, _long),
    ("Mean job completion time", lambda one: one.jct_s, _long),
    ("Mean wait", lambda one: one.wait_s, _long),
    ("Utilization", lambda one: one.utilization, _percent),
    ("GPU hours", lambda one: one.gpu_hours, "{:.0f}".format),
)


RATIOS = (
    *(("makespan", "makespan_s"), ("mean JCT", "jct_s"), ("p95 JCT", "jct_p95_s"), ("mean wait", "wait_s")),
    *(("p95 wait", "wait_p95_s"), ("utilization", "utilization"), ("fairness", "fairness")),
)
FREED = "GPU hours freed"
RATIO_COLUMNS = tables.columns("policy", *dict(RATIOS), FREED)


def row(repeated: Repeated) -> list[str]:
    """Return a policy's cells, in the order of `COLUMNS`; broken promises with their interval."""
    cells = {column.title: show(repeated.figures) for column, show in FIGURES}
    if repeated.broken is not None:
        cells[BROKEN] += f" ({100 * repeated.broken.low:.1f}-{100 * repeated.broken.high:.1f})"
    return [repeated.policy, *cells.values()]


def ratio_row(repeated: Repeated, base: Repeated) -> list[str]:
    """Return a policy's figures over those of *base*, in the order of `RATIO_COLUMNS`."""
    ratios = (_range_text(repeated.ratios(base, name)) for _, name in RATIOS)
    freed_hours = [one.figures.freed_hours for one in repeated.results]
    return [f"{repeated.policy} / {base.policy}", *ratios, _range_text(freed_hours, 0)]


def _range_text(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, and the smallest and largest where there are several; nothing where somebody had none."""
    text, dash = f"{median(values):,.{digits}f}" if values else "", "-" if min(values, default=0.0) >= 0 else " to "
    return text if len(values) <= 1 else f"{text} ({min(values):,.{digits}f}{dash}{max(values):,.{digits}f})"


def page(results: Sequence[Repeated], notes: Sequence[str], origin: html.Origin | None = None) -> str:
    """Return a page with the table, a plot for each figure, and how many jobs wait over time; *origin* made it."""
    columns, rows = tables.filled(COLUMNS, [row(one) for one in results])
    body = html.table([column.title for column in columns], rows)
    if len(results) > 1:
        ratios = [ratio_row(one, results[0]) for one in results[1:]]
        body += html.table([column.title for column in RATIO_COLUMNS], ratios)
    body += html.notes(notes)
    for title, value, show in PLOTTED:
        drawn = [
            bars.Bar(label=one.policy, text=show(value(one.figures)), parts=[("value", value(one.figures))])
            for one in results
        ]
        body += html.figure(bars.meters(drawn, COLOURS), title)

    for one in results:
        waiting = _waiting(one.results[0])
        if any(bar.length for bar in waiting):
            body += html.figure(html.wide(bars.sequence(waiting, COLOURS)), f"{one.policy}: jobs that wait, over time")

    return html.page("A simulation of gpusage", body, origin)


def _waiting(result: Result) -> list[bars.Bar]:
    """Return how many jobs wait at moments that are evenly spread over the simulation."""
    submit_s, start_s = result.jobs.submit_s, np.sort(result.start_s)
    first = float(submit_s[0])
    moments = np.linspace(first, first + result.figures.makespan_s, SLICES)
    counts = np.searchsorted(submit_s, moments, side="right") - np.searchsorted(start_s, moments, side="right")

    return [
        bars.Bar(label=_long(moment - first), text=f"{count} jobs", parts=[("value", float(count))])
        for moment, count in zip(moments.tolist(), counts.tolist(), strict=True)
    ]
