"""The store of decisions, whatever keeps them: one row per decision.

Invariants:

1. A store is opened by its first use and belongs to the thread of that first use.
2. A batch is kept whole or not at all.
3. A store written by a newer gpusage is left alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import DecisionRecord

SCHEMA_VERSION = 2
"""1 had no numbers; a store of version 1 gets them when it is next opened, its records keep their empty ones."""
RETRY_S = 1.0
"""How long a store that could not be opened is left in peace."""
DAY_S = 86_400.0


class StoreError(GpuUsageError):
    """Say that the store cannot be read or written."""

    code = "store"


class DecisionStore(ABC):
    """Keeps decisions."""

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
        """Open the store now, so that the first decision need not wait; what fails is left for that one to tell."""

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
    def find(self, number: str) -> DecisionRecord | None:
        """Return the decision with this *number*, ``None`` where there is none.

        Raises:
            StoreError: As `latest`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the store; the next use opens it again."""
