"""What a site has learned, and how a job finds its part of it; without what learns, so that this is quickly imported.

Invariants:

1. The nearest experience counts: of this job by its name, of this user with this model, of others with this model.
2. Who submits is looked at only where the model, or another job at all, has been seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusage.history.history import History
from gpusage.history.trust import NO_TRUST, Trust
from gpusage.learning.findings import NOTHING, Experience, Finding, Habit
from gpusage.learning.identity import family, fingerprint, manner_of
from gpusage_hooks.types import ModelGraph, Submitter, Workload

Model = tuple[str, str]
"""A fingerprint, and how the model is run."""
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a site has learned.

    Attributes:
        models: Those that have been seen.
        experiences: By model; by model and user; by model, user and job name.
        habits: By family and user, by family, by user, and of the whole site; what is left out is empty.
        mistrusted: By family and user, why no share is enforced for now.
        history: What is known of jobs that name no model; ``None`` where nothing is.
        trust: What that history has earned.
    """

    models: frozenset[Model] = frozenset()
    experiences: Mapping[Key, Experience] = field(default_factory=dict)
    habits: Mapping[Key, Habit] = field(default_factory=dict)
    mistrusted: Mapping[Key, str] = field(default_factory=dict)
    history: History | None = None
    trust: Trust = NO_TRUST

    def find(self, graph: ModelGraph, workload: Workload, submitter: Submitter) -> Finding:
        """Return what is known of a job of *submitter*; `NOTHING` where nothing is."""
        model = (fingerprint(graph), manner_of(workload)) if self.models else ("", "")
        if model in self.models:
            for key, whose in _keys(model, submitter):
                if key in self.experiences:
                    return Finding(experience=self.experiences[key], whose=whose)
        return self._habit(family(graph.name), submitter) if self.habits else NOTHING

    def why_not_enforced(self, graph: ModelGraph, submitter: Submitter) -> str:
        """Return why no share is enforced for *submitter* and this family for now, one clause; empty where one is."""
        return self.mistrusted.get((family(graph.name), submitter.user), "") if self.mistrusted else ""

    def _habit(self, kind: str, submitter: Submitter) -> Finding:
        user = submitter.user
        for key in ((kind, user), (kind, ""), ("", user), ("", "")):
            if key in self.habits:
                return Finding(habit=self.habits[key])
        return NOTHING


NOTHING_LEARNED = Learned()


def _keys(model: Model, submitter: Submitter) -> tuple[tuple[Key, str], ...]:
    """Return under what to look for a job, nearest first, and whose runs these are."""
    own = (*model, submitter.user)
    return (
        ((*own, submitter.job_name), "earlier runs"),
        (own, "earlier runs of this model"),
        (model, "runs of this model by others"),
    )
