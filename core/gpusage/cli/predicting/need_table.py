"""What models need as tables: for `gpusage predict`, its page, and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpusage.cli import documents, tables
from gpusage.decisions.advisor import advisor
from gpusage.devices.shares import memory_cap_bytes
from gpusage.predictors.intervals import scaled
from gpusage_hooks.types import GpuNeed, ModelGraph, Workload
from gpusage_hooks.units import WHOLE_PERCENT

LEGEND = (
    "In parentheses: the ends between which 9 of 10 runs should lie; 99 of 100 take less memory than its high end. "
    "'*': outside what the predictors were fitted on."
)
COLUMNS = tables.columns(
    *("GPU", "step time", "memory needed", "fits", "memory taken", "GPU busy", "SM activity", "DRAM activity"),
    *("samples/s", "speedup"),
    optional=("memory taken", "GPU busy", "DRAM activity"),
)
SHARE_COLUMNS = (tables.Column("share"), tables.Column("slowdown"))
"""Behind the GPU, where one need of the table is of a share, or of a slice."""


class Prediction(NamedTuple):
    """The needs of one batch of a model.

    Attributes:
        needs: On each GPU, or on each share of each.
        first: The need that speed-ups are against.
    """

    graph: ModelGraph
    workload: Workload
    needs: tuple[GpuNeed, ...]
    first: GpuNeed


def are_shared(needs: Sequence[GpuNeed]) -> bool:
    """Return whether one of *needs* is of a share, or of a slice."""
    return any(need.share_percent != WHOLE_PERCENT or need.slowdown.high > 1.0 for need in needs)


def notes(needs: Sequence[GpuNeed]) -> list[str]:
    """Return the notes on the figures, each sentence once."""
    return list(dict.fromkeys(note for need in needs for note in need.notes))


def fit_word(need: GpuNeed) -> str:
    """Return ``yes``, or ``tight`` where only the upper end of the memory does not fit, else ``no``."""
    if need.fits:
        return "yes"
    whole, percent = advisor().catalogue.find(need.gpu).memory_bytes, need.share_percent
    room = whole if percent == WHOLE_PERCENT else memory_cap_bytes(whole, percent)
    return "tight" if need.required_bytes.value <= room else "no"


def columns(needs: Sequence[GpuNeed], run: Workload | None = None, *, has_batch: bool = False) -> list[tables.Column]:
    """Return the columns of a table of *needs*.

    Args:
        needs: Of all rows.
        run: How the model is run: its steps and its generated tokens have columns of their own.
        has_batch: Whether the rows are of several batches.
    """
    gpu, *others = COLUMNS
    batch = (tables.Column("batch"),) if has_batch else ()
    if run and run.generate:
        # Before the speed-up, which stays last.
        others.insert(-1, tables.Column("tokens/s"))
    if run and run.steps:
        others.append(tables.Column(f"{run.steps} steps"))
    return [gpu, *batch, *(SHARE_COLUMNS if are_shared(needs) else ()), *others]


def cells(
    need: GpuNeed, first: GpuNeed, run: Workload | None = None, *, has_batch: bool = False, is_shared: bool
) -> list[str]:
    """Return the cells of `columns` for *need*; the speed-up is against *first*."""
    batch = [str(run.batch_size)] if run and has_batch else []
    share = [f"{need.share_percent} %", tables.interval_text(need.slowdown, "x")] if is_shared else []
    row = [
        need.gpu + ("" if need.familiar else " *"),
        *batch,
        *share,
        tables.time_text(need.step_time_s),
        tables.memory_text(need.required_bytes),
        fit_word(need),
        # Empty where a run fails with less than it takes: then both are one figure.
        "" if need.memory_bytes == need.required_bytes else tables.memory_text(need.memory_bytes),
        tables.share_text(need.gpu_utilization),
        tables.share_text(need.sm_activity),
        tables.share_text(need.dram_activity),
        tables.interval_text(need.throughput_samples_per_s),
    ]

    if run and run.generate:
        row.append(tables.interval_text(scaled(need.throughput_samples_per_s, run.generate.new_tokens)))
    row.append(tables.interval_text(documents.speedup(need, first), "x"))
    if run and run.steps:
        row.append(tables.time_text(scaled(need.step_time_s, run.steps)))

    return row


def rows_of_needs(needs: Sequence[GpuNeed]) -> list[list[str]]:
    """Return one row for each of *needs*, which are at least one; speed-ups are against the first."""
    is_shared = are_shared(needs)
    return [cells(need, needs[0], is_shared=is_shared) for need in needs]


def table(group: Sequence[Prediction]) -> tuple[list[tables.Column], list[list[str]], list[str]]:
    """Return columns, rows and notes of predictions of one model, which differ in their batch."""
    needs = [need for one in group for need in one.needs]
    is_shared, has_batch = are_shared(needs), len(group) > 1
    rows = [
        cells(need, one.first, one.workload, has_batch=has_batch, is_shared=is_shared)
        for one in group
        for need in one.needs
    ]
    return columns(needs, group[0].workload, has_batch=has_batch), rows, notes(needs)


def show(group: Sequence[Prediction]) -> None:
    """Print predictions of one model as one table."""
    graph, run = group[0].graph, group[0].workload
    columns, rows, sentences = table(group)

    tables.show(graph.name, style="bold")
    tables.show(f"{describe_model(graph)}\n{describe_workload(graph, run, has_batch=len(group) == 1)}\n")
    tables.show_rows(columns, rows)
    tables.show("\n".join(["", *(f"- {note}" for note in sentences), *([""] if sentences else [])]))


def describe_model(graph: ModelGraph) -> str:
    """Return what a model is, in one line."""
    document = documents.model(graph)
    nodes, parameters = f"{graph.source}: {document['node_count']} nodes", tables.count_text(graph.parameter_count)
    if document["active_parameter_count"] < graph.parameter_count:
        parameters += f" ({tables.count_text(document['active_parameter_count'])} active)"
    return f"{nodes}, {parameters} parameters, {tables.count_text(document['flop'])}FLOP forward per sample"


def describe_workload(graph: ModelGraph, run: Workload, *, has_batch: bool = True) -> str:
    """Return how a model is run, in one line; without the batch where that has a column."""
    document = documents.workload(graph, run)
    shapes = [f"{name}={'x'.join(map(str, sizes))}" for name, sizes in document["shape"].items() if sizes]
    batch = [f"batch {run.batch_size}"] if has_batch else []
    words = [run.mode, *batch, run.precision, *([run.optimizer] if run.mode == "train" else [])]
    return ", ".join([*words, *documents.manner_words(run), *shapes])
