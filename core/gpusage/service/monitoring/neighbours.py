"""The jobs that run on shares now, each with what was predicted when its share was decided.

Invariants:

1. Used in the one thread that monitors jobs; no answer to a job waits for it.
2. A record is read once, while its job runs. It may be written late, so a missing one is looked up in
   `MAXIMUM_LOOKUPS` runs of the monitor. A job whose record is gone is nobody's neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from gpusage.store.annotation import parse_annotation
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import AnnotatedJob, DecisionRecord, Neighbour

MAXIMUM_LOOKUPS = 3


class NeighbourLookup:
    """Finds the neighbours that a share may get.

    Args:
        open_store: Opens the store, in the monitor's thread.
    """

    def __init__(self, open_store: Callable[[], DecisionStore]) -> None:
        self._open_store = open_store
        self._store: DecisionStore | None = None
        self._records: dict[str, DecisionRecord] = {}
        self._failed_lookups = Counter[str]()

    def find(self, jobs: Iterable[AnnotatedJob]) -> tuple[Neighbour, ...]:
        """Return those of *jobs* that run on shares.

        Raises:
            StoreError: The store cannot be read.
        """
        running = [(number, job) for job in jobs if job.nodes and (number := _decision_number(job))]
        records = {number: self._records.get(number) or self._read(number) for number, _ in running}
        self._records = {number: record for number, record in records.items() if record is not None}
        missing = records.keys() - self._records
        self._failed_lookups = Counter({number: self._failed_lookups[number] + 1 for number in missing})
        neighbours = (make_neighbour(job, self._records[number]) for number, job in running if number in self._records)
        return tuple(neighbour for neighbour in neighbours if neighbour is not None)

    def _read(self, number: str) -> DecisionRecord | None:
        if self._failed_lookups[number] >= MAXIMUM_LOOKUPS:
            return None
        self._store = self._store or self._open_store()
        return self._store.find(number)


def make_neighbour(job: AnnotatedJob, record: DecisionRecord) -> Neighbour | None:
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


def _decision_number(job: AnnotatedJob) -> str:
    mark = parse_annotation(job.mark)
    return mark.number if mark else ""
