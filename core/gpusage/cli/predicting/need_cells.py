"""A need as cells of a table, for the terminal, pages and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpusage.cli import documents, figures, tables
from gpusage_hooks.types import GpuNeed
from gpusage_hooks.units import WHOLE_PERCENT

COLUMNS = (
    tables.Column("GPU", is_left=True),
    tables.Column("step time"),
    tables.Column("memory needed"),
    tables.Column("fits"),
    tables.Column("memory taken", is_optional=True),
    tables.Column("GPU busy", is_optional=True),
    tables.Column("SM activity"),
    tables.Column("DRAM activity", is_optional=True),
    tables.Column("samples/s"),
    tables.Column("speedup"),
)
SHARE_COLUMNS = (tables.Column("share"), tables.Column("slowdown"))
"""Behind the GPU, where one need of the table is of a share, or of a slice."""


def columns(needs: Sequence[GpuNeed]) -> tuple[tables.Column, ...]:
    """Return the columns of a table of *needs*."""
    gpu, *others = COLUMNS
    return (gpu, *(SHARE_COLUMNS if are_shared(needs) else ()), *others)


def cells(need: GpuNeed, *, first: GpuNeed, is_shared: bool) -> Iterator[str]:
    """Yield the cells of *need*; the speed-up is against *first*."""
    yield need.gpu + ("" if need.familiar else " *")
    if is_shared:
        yield from share_cells(need)
    yield from figure_cells(need)
    yield figures.plain(documents.speedup(need, first), "x")


def share_cells(need: GpuNeed) -> Iterator[str]:
    """Yield the cells of `SHARE_COLUMNS`."""
    yield f"{need.share_percent} %"
    yield figures.plain(need.slowdown, "x")


def figure_cells(need: GpuNeed) -> Iterator[str]:
    """Yield the cells from the step time to the samples per second."""
    yield figures.time(need.step_time_s)
    yield figures.memory(need.required_bytes)
    yield "yes" if need.fits else "no"
    yield "" if need.memory_bytes == need.required_bytes else figures.memory(need.memory_bytes)
    yield figures.share(need.gpu_utilization)
    yield figures.share(need.sm_activity)
    yield figures.share(need.dram_activity)
    yield figures.plain(need.throughput_samples_per_s)


def rows(needs: Sequence[GpuNeed]) -> list[list[str]]:
    """Return one row for each of *needs*, which are at least one; speed-ups are against the first."""
    shared = are_shared(needs)
    return [list(cells(need, first=needs[0], is_shared=shared)) for need in needs]


def are_shared(needs: Sequence[GpuNeed]) -> bool:
    """Return whether one of *needs* is of a share, or of a slice."""
    return any(need.share_percent != WHOLE_PERCENT or need.slowdown.high > 1.0 for need in needs)


def notes(needs: Sequence[GpuNeed]) -> list[str]:
    """Return what is to be known of the figures, each sentence once."""
    return list(dict.fromkeys(note for need in needs for note in need.notes))
