"""Jobs that ran beside one other on a GPU, against runs of the same script alone, as rows of a file of pairs.

Invariants:

1. Work is equal where user, script, model, settings, GPU type and share are, and the runs completed.
2. A partner is known only where one other run of the node shared a GPU of its type at the time, nearly to the run's
   end: one that still runs has no row, and may be the partner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from gpusage.experience.identity import unusual_settings
from gpusage.store.rows import Observation
from gpusage_hooks.types import Usage

PAIR_COLUMNS = ("model", "beside", "slowdown", "gpu_type")
MOST_ALONE = 0.1
"""Of a run's sampled time, without its partner."""
LEAST_SLOWDOWN = 0.5
"""A run beside another that was shorter did other work."""


class _Run(NamedTuple):
    """A run, how users write its job, and what is equal for runs of equal work; both empty where they are unknown."""

    usage: Usage
    job: str
    work: tuple[object, ...]

    @property
    def duration_s(self) -> float:
        """Return how long it took."""
        return self.usage.ended_at_s - self.usage.started_at_s


def pair_rows(observations: Sequence[Observation], least_sampled_s: float) -> Iterator[dict[str, str]]:
    """Yield a row for each run beside one other whose script also ran alone, on as large a part of such a GPU.

    Args:
        observations: All that the store has.
        least_sampled_s: Shorter runs are mostly start-up.
    """
    alone_s: dict[tuple[object, ...], list[float]] = defaultdict(list)
    shared: dict[tuple[str, str], list[_Run]] = defaultdict(list)
    for run in map(_run, observations):
        if run.usage.alone_s < run.usage.sampled_s:
            shared[run.usage.sampled_on, run.usage.gpu].append(run)
        elif run.work and run.usage.sampled_s >= least_sampled_s:
            alone_s[run.work].append(run.duration_s)

    for runs in shared.values():
        running: list[_Run] = []
        partners: dict[int, list[_Run]] = defaultdict(list)
        for run in sorted(runs, key=lambda each: each.usage.started_at_s):
            running = [each for each in running if each.usage.ended_at_s > run.usage.started_at_s]
            for other in running:
                partners[id(run)].append(other)
                partners[id(other)].append(run)
            running.append(run)

        for run in runs:
            usage, others = run.usage, partners[id(run)]
            both = [usage, *(other.usage for other in others)]
            together_s = min(each.ended_at_s for each in both) - max(each.started_at_s for each in both)
            apart_s = max(usage.alone_s, run.duration_s - together_s)
            has_one_partner = len(others) == 1 and apart_s <= MOST_ALONE * usage.sampled_s
            if not (has_one_partner and others[0].job and alone_s.get(run.work) and usage.sampled_s >= least_sampled_s):
                continue
            slowdown = run.duration_s / median(alone_s[run.work])
            if slowdown >= LEAST_SLOWDOWN:
                cells = (run.job, others[0].job, f"{slowdown:.4g}", usage.gpu)
                yield dict(zip(PAIR_COLUMNS, cells, strict=True))


def _run(observation: Observation) -> _Run:
    usage, record = observation.usage, observation.decision
    if record is None or record.model is None or record.workload is None or unusual_settings(record.workload):
        return _Run(usage, "", ())
    run = record.workload
    shapes = (f"shape={name}={'x'.join(map(str, sizes))}" for name, sizes in run.shape)
    options = (f"batch={run.batch_size}", f"mode={run.mode}", f"precision={run.precision}", *shapes)
    job, script = ",".join((record.model, *options)), record.identity.script_digest if record.identity else ""
    is_known = script and usage.outcome == "completed"
    return _Run(usage, job, (usage.user, script, job, usage.gpu, usage.granted.share_percent) if is_known else ())
