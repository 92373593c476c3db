"""The store of decisions and usage, whatever keeps them: one row per decision, one per run of a job.

Invariants:

1. A store is opened by its first use and belongs to the thread of that first use.
2. A batch is kept whole or not at all.
3. A store written by a newer gpusage is left alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gpusage.store.usage_rows import Observation, UsageQuery
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import DecisionRecord, Usage

RETRY_S = 1.0
"""How long a store that could not be opened is not tried again."""
DAY_S = 86_400.0


class StoreError(GpuUsageError):
    """The store cannot be read or written."""

    code = "store"


class DecisionStore(ABC):
    """Keeps decisions, and what the jobs really used."""

    def record(self, record: DecisionRecord) -> None:
        """Keep one decision; see `record_all`."""
        self.record_all((record,))

    @abstractmethod
    def record_all(self, records: Sequence[DecisionRecord]) -> None:
        """Keep *records*, all in one transaction.

        Raises:
            StoreError: None of them could be kept.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Open the store now, so that the first decision need not wait; that one reports what fails."""

    @abstractmethod
    def latest(self, count: int, origins: Sequence[str] = ()) -> tuple[DecisionRecord, ...]:
        """Return the last *count* decisions, the newest first; none where there is no store yet.

        Args:
            count: At most so many.
            origins: Only those of one of these; none given, everybody's.

        Raises:
            StoreError: It is not a store of ours, or of a newer gpusage.
        """

    @abstractmethod
    def since(self, since_s: float, origins: Sequence[str] = ()) -> tuple[DecisionRecord, ...]:
        """Return the decisions made at *since_s*, seconds since 1970, or later, the newest first; see `latest`."""

    @abstractmethod
    def find(self, number: str) -> DecisionRecord | None:
        """Return the decision with this *number*, ``None`` where there is none.

        Raises:
            StoreError: As `latest`.
        """

    @abstractmethod
    def record_usage(self, usages: Sequence[Usage]) -> None:
        """Keep *usages*, all in one transaction; what is known of the same run of a job is replaced.

        Raises:
            StoreError: None of them could be kept.
        """

    def usage(
        self,
        *,
        since_s: float | None = None,
        user: str | None = None,
        job_id: str | None = None,
        number: str | None = None,
        count: int | None = None,
    ) -> tuple[Observation, ...]:
        """Return what jobs really did, each with its decision, those that ended last first; none without a store.

        Args:
            since_s: Those that ended then or later, seconds since 1970.
            user: Those of this user.
            job_id: In the manager's own form; one line per run of a requeued job.
            number: Of the decision.
            count: At most so many.

        Raises:
            StoreError: As `latest`.
        """
        return self.observations(UsageQuery(since_s=since_s, user=user, job_id=job_id, number=number, count=count))

    @abstractmethod
    def observations(self, question: UsageQuery) -> tuple[Observation, ...]:
        """Return what `usage` does."""

    @abstractmethod
    def close(self) -> None:
        """Close the store; the next use opens it again."""
