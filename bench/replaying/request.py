"""What a user of the replay asks for: one GPU for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpusage_planning.replay.site import KnownRun, Site
from gpusage_planning.zoo import load_zoo


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One job.

    Attributes:
        model: The file of its model's card.
        utilization: What an earlier run alone showed, in percent.
    """

    model: Path
    known: KnownRun
    utilization: int

    @property
    def comment(self) -> str:
        """Return what the user writes into a job's comment."""
        run = self.known.run
        options = f"batch={run.batch_size},precision={run.precision},optimizer={run.optimizer}"
        return f"model={self.model},{options},utilization={self.utilization}"


def request_of(folder: Path, known: KnownRun) -> Request:
    """Write the model's card into *folder*, and return the request."""
    path = folder / f"{known.key.replace(':', '-').replace('@', '-')}.card.json"
    path.write_text(load_zoo().cards[known.key])
    utilization = max(round(100 * (known.run.alone.utilization or 0.0)), 1)
    return Request(model=path, known=known, utilization=utilization)


class Manager(Protocol):
    """A workload manager that runs a replay's jobs.

    Attributes:
        nodes: The nodes' names by what a job's body calls them, where that is something else.
        models: A folder for models' cards.
    """

    name: str
    site: Site
    socket: Path
    models: Path
    nodes: Mapping[str, str]

    def installed(self, state: str) -> AbstractContextManager[None]:
        """Have gpusage installed while *state* is on."""

    def submitted(self, requests: Sequence[Request]) -> list[str]:
        """Return what the manager calls the jobs; none of them may start yet."""

    def shares(self, names: Sequence[str]) -> list[int]:
        """Return the percentage of a GPU that each job waits for."""

    def release(self, names: Sequence[str]) -> None:
        """Let all jobs be started from now on."""

    def wait_for(self, is_done: Callable[[], bool], longest_s: float) -> None:
        """Wait until all jobs are done, and nothing of them is left."""

    def backfilled(self) -> int | None:
        """Return how many jobs backfill has started so far; ``None`` where that is not counted."""
