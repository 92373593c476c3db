"""The jobs that run on shares now, each with what was predicted when its share was decided.

Invariants:

1. Used in the one thread that looks at marked jobs; no answer to a job waits for it.
2. A record is read once, while its job runs; one that is not there is looked for `MOST_LOOKS` times, for it may be
   written late. A job whose record is gone is nobody's neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from gpusage.mark import parse_mark
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import DecisionRecord, MarkedJob, Neighbour

MOST_LOOKS = 3
"""For a record that is not there."""


class Neighbourhood:
    """Knows the neighbours that a share may get.

    Args:
        open_store: Opens the store, in the thread that looks.
    """

    def __init__(self, open_store: Callable[[], DecisionStore]) -> None:
        self._open_store = open_store
        self._store: DecisionStore | None = None
        self._records: dict[str, DecisionRecord] = {}
        self._missed = Counter[str]()

    def neighbours(self, jobs: Iterable[MarkedJob]) -> tuple[Neighbour, ...]:
        """Return those of *jobs* that run on shares.

        Raises:
            StoreError: The store cannot be read.
        """
        running = [(number, job) for job in jobs if job.nodes and (number := _number(job))]
        records = {number: self._records.get(number) or self._read(number) for number, _ in running}
        self._records = {number: record for number, record in records.items() if record is not None}
        self._missed = Counter({number: self._missed[number] + 1 for number in records.keys() - self._records})
        known = (neighbour_of(job, self._records[number]) for number, job in running if number in self._records)
        return tuple(neighbour for neighbour in known if neighbour is not None)

    def _read(self, number: str) -> DecisionRecord | None:
        if self._missed[number] >= MOST_LOOKS:
            return None
        self._store = self._store or self._open_store()
        return self._store.find(number)


def neighbour_of(job: MarkedJob, record: DecisionRecord) -> Neighbour | None:
    """Return *job* as a neighbour, by the *record* of its decision; ``None`` where that gave it no share."""
    decision = record.decision
    share_percent = decision.request.mps_thread_percent
    if not share_percent or decision.need is None or record.workload is None:
        return None
    return Neighbour(
        nodes=job.nodes,
        share_percent=share_percent,
        thread_percent=decision.request.thread_cap_percent or share_percent,
        need=decision.need,
        workload=record.workload,
    )


def _number(job: MarkedJob) -> str:
    mark = parse_mark(job.mark)
    return mark.number if mark else ""
