"""Pairs that `gpusage profile` measured under MPS, in the form of the public ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from gpusage.decisions.advisor import make_advisor
from gpusage.predictors.sharing.colocation import features_of
from gpusage_hooks.types import GpuNeed
from gpusage_lab.learning.pairs import Pairs
from gpusage_lab.learning.profiled import ProfiledRun, profiled
from gpusage_lab.measurements.tables import DataFolder

WHOLE_PERCENT = 100.0
Together = tuple[ProfiledRun, ProfiledRun]


def profiled_pairs(data: DataFolder) -> dict[str, Pairs]:
    """Return the pairs of each campaign that has any, by campaign; alone means alone under MPS."""
    runs = [run for run in profiled(data).runs if run.sharing == "mps" and run.figures.get("steps_per_s")]
    campaigns = groupby(runs, key=lambda run: run.campaign)
    pairs_by_campaign = {campaign: _pairs(list(members)) for campaign, members in campaigns}
    return {campaign: pairs for campaign, pairs in pairs_by_campaign.items() if pairs is not None}


def joined(sources: Sequence[Pairs]) -> Pairs:
    """Return all jobs in one table: those of two sources were never measured together.

    Its GPU is that of the first source; each job's need and features are of its own.
    """
    ends = np.cumsum([0, *(len(pairs.jobs) for pairs in sources)])
    sums, parts = np.full((2, ends[-1], ends[-1]), np.nan)
    for pairs, start, end in zip(sources, ends, ends[1:], strict=False):
        sums[start:end, start:end], parts[start:end, start:end] = pairs.sums, pairs.parts
    return Pairs(
        jobs=tuple(job for pairs in sources for job in pairs.jobs),
        needs=tuple(need for pairs in sources for need in pairs.needs),
        features=np.concatenate([pairs.features for pairs in sources]),
        sums=sums,
        parts=parts,
        failed=tuple(
            (first + int(start), second + int(start))
            for pairs, start in zip(sources, ends, strict=False)
            for first, second in pairs.failed
        ),
        gpu=sources[0].gpu,
    )


def _pairs(runs: Sequence[ProfiledRun]) -> Pairs | None:
    alone = {
        run.job: run.figures["steps_per_s"]
        for run in runs
        if run.kind == "share" and run.figures.get("thread_percent") == WHOLE_PERCENT
    }
    together = [pair for pair in _complete_pairs(runs) if all(run.job in alone for run in pair)]
    jobs = {run.job: run for pair in together for run in pair}
    if not jobs:
        return None
    places = {job: place for place, job in enumerate(sorted(jobs))}
    sums, parts = np.full((2, len(jobs), len(jobs)), np.nan)
    for first, second in together:
        a, b = places[first.job], places[second.job]
        if a != b:
            parts[a, b], parts[b, a] = (run.figures["steps_per_s"] / alone[run.job] for run in (first, second))
            sums[a, b] = sums[b, a] = parts[a, b] + parts[b, a]
    ordered = [jobs[job] for job in sorted(jobs)]
    needs = tuple(_needs(ordered))
    return Pairs(
        jobs=tuple((run.key, run.workload.batch_size, run.workload.precision in ("fp16", "bf16")) for run in ordered),
        needs=needs,
        features=features_of(needs),
        sums=sums,
        parts=parts,
        failed=(),
        gpu=ordered[0].gpu,
    )


def _complete_pairs(runs: Iterable[ProfiledRun]) -> Iterator[Together]:
    """Yield both sides of each pair that succeeded on both."""
    for _, sides in groupby((run for run in runs if run.kind == "pair"), key=lambda run: run.item):
        pair = tuple(sides)
        if len(pair) == 2:  # a pair
            yield pair[0], pair[1]


def _needs(runs: Sequence[ProfiledRun]) -> Iterator[GpuNeed]:
    advisor = make_advisor()
    for run in runs:
        yield advisor.predict(run.graph, run.workload, [run.gpu])[0]
