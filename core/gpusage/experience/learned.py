"""What a site has learned of jobs that name a model, and how a job finds its part of it.

What learns stands in `learning`, so that this is imported quickly.

Invariants:

1. The nearest experience counts: of this job by its name, of this user with this model, of others with this model.
   Of these `LEAST_USERS` are needed, each of whom counts once.
2. The submitter's fields are read only where the model, or another job at all, has been seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from gpusage.experience.failures import Failures, why_whole
from gpusage.experience.identity import family, fingerprint, settings_key
from gpusage.experience.other_users import LEAST_USERS, MOST_USERS
from gpusage.experience.trust import NO_TRUST, HistoryTrust
from gpusage_hooks.types import Interval, ModelGraph, ModelRequest, Submitter, Workload
from gpusage_hooks.units import WHOLE_PERCENT, gib

if TYPE_CHECKING:
    from gpusage.experience.history import History

CONTRADICTING_RUNS = 5
"""So many runs alone on one whole GPU outweigh the utilization that a user gives."""

GpuShare = tuple[str, int]
"""A GPU, and the percentage of it."""
Model = tuple[str, str]
"""A fingerprint, and the settings of a step."""
Key = tuple[str, ...]
T = TypeVar("T")
ByUser = tuple[tuple[str, T], ...]
"""What each of several users' runs showed, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What earlier runs of one job showed.

    Attributes:
        run_count: How many there were that count.
        utilization: Alone, by GPU and percentage.
        utilization_runs: How many runs each of these rests on.
        slowdown: By GPU and percentage below 100, the duration against that on the whole GPU; at least 1.
        memory_bytes: The peak, and how far it may go.
    """

    run_count: int
    utilization: Mapping[GpuShare, Interval]
    utilization_runs: Mapping[GpuShare, int]
    slowdown: Mapping[GpuShare, float]
    memory_bytes: Interval | None

    def contradicts(self, utilization: float | None) -> bool:
        """Return whether many runs on whole GPUs rule out *utilization*, or any where it is ``None``."""
        observed = [
            interval
            for (gpu, percent), interval in self.utilization.items()
            if percent == WHOLE_PERCENT and self.utilization_runs[gpu, percent] >= CONTRADICTING_RUNS
        ]
        return bool(observed) and not any(
            utilization is not None and interval.low <= utilization <= interval.high for interval in observed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRatio:
    """How busy one user's jobs of one family were, against predictions.

    Attributes:
        job_count: How many jobs it rests on.
        ratio: Of observed over predicted utilization.
    """

    job_count: int
    ratio: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known of a job before it runs.

    Attributes:
        experience: Of its own earlier runs, or its user's of this model.
        source: What these runs are, for people: ``earlier runs``.
        family_ratio: Of its user's jobs of this family, where it never ran.
        others: What each of several other users' runs of this model, or of its family, showed; one for each user.
    """

    experience: Experience | None = None
    source: str = ""
    family_ratio: FamilyRatio | None = None
    others: tuple[Experience | FamilyRatio, ...] = ()

    def describe(self, gpu: str) -> str:
        """Return what is known of the job on *gpu*, one clause; empty where nothing is."""
        if self.experience is not None:
            return self._describe_experience(self.experience, gpu)
        if self.others:
            return f"{self.source} of {len(self.others)} other users count, within the prediction from the graph"
        if self.family_ratio is None:
            return ""
        ratio = self.family_ratio.ratio
        factor = f"{ratio.value:.2f} times ({ratio.low:.2f}-{ratio.high:.2f}) as busy as predicted"
        return f"{self.family_ratio.job_count} other jobs of this kind were {factor}"

    def _describe_experience(self, experience: Experience, gpu: str) -> str:
        memory, counts = experience.memory_bytes, experience.utilization_runs
        shares = [share for share in experience.utilization if share[0] == gpu] or [*experience.utilization]
        if not shares:
            counted = run_count(experience.run_count, self.source)
            return f"{counted} needed {gib(memory.value)} (up to {gib(memory.high)})" if memory else ""
        gpu, percent = share = max(shares, key=lambda share: (share[1], counts[share]))
        utilization, count = experience.utilization[share], counts[share]
        ends = f"{100 * utilization.low:.0f}-{100 * utilization.high:.0f}"
        place = gpu if percent == WHOLE_PERCENT else f"{percent} % of {gpu}"
        verb = "were" if count > 1 else "was"
        busy = f"busy {100 * utilization.value:.0f} % ({ends}) of the time on {place}"
        return f"{run_count(count, self.source)} {verb} {busy}"


NO_FINDING = Finding()


def run_count(count: int, runs: str) -> str:
    """Return how many runs a figure rests on: ``12 earlier runs``, ``1 earlier run``."""
    return f"{count} {runs if count > 1 else runs.replace('runs', 'run', 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a site has learned.

    Attributes:
        models: Those that have been seen.
        experiences: By model and user; by model, user and job name.
        family_ratios: By family and user, and by user; the family is then empty.
        model_users: By model, of several users at least.
        family_users: By family, and of the whole site, the family then empty; of several users at least.
        suspended: By family and user, why no share is enforced for now.
        failures: Jobs that failed in their shares, for a reason that nobody knows.
        history: What is known of jobs that name no model; ``None`` where nothing is.
        trust: What that history has earned.
        first_runs: GPU utilization of jobs that named no model, by user and number: what a job's own run showed of its
            model is decided with it.
    """

    models: frozenset[Model] = frozenset()
    experiences: Mapping[Key, Experience] = field(default_factory=dict)
    family_ratios: Mapping[Key, FamilyRatio] = field(default_factory=dict)
    model_users: Mapping[Key, ByUser[Experience]] = field(default_factory=dict)
    family_users: Mapping[Key, ByUser[FamilyRatio]] = field(default_factory=dict)
    suspended: Mapping[Key, str] = field(default_factory=dict)
    failures: Failures = field(default_factory=dict)
    history: History | None = None
    trust: HistoryTrust = NO_TRUST
    first_runs: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def with_first_run(self, request: ModelRequest, submitter: Submitter) -> ModelRequest:
        """Return *request* with the utilization of the run that showed its model, if *submitter*'s node sampled it."""
        alone = request.workload.alone
        if not (self.first_runs and request.first_run) or alone.utilization is not None:
            return request
        utilization = self.first_runs.get((submitter.user, request.first_run))
        if utilization is None:
            return request
        workload = replace(request.workload, alone=replace(alone, utilization=utilization))
        return replace(request, workload=workload)

    def find(self, graph: ModelGraph, workload: Workload, submitter: Submitter) -> Finding:
        """Return what is known of a job of *submitter*; `NO_FINDING` where nothing is."""
        model = (fingerprint(graph), settings_key(workload)) if self.models else ("", "")
        if model in self.models:
            own = (*model, submitter.user)
            for key, source in (((*own, submitter.job_name), "earlier runs"), (own, "earlier runs of this model")):
                if key in self.experiences:
                    return Finding(experience=self.experiences[key], source=source)
            others = _other_users(self.model_users.get(model, ()), submitter)
            if others:
                return Finding(others=others, source="runs of this model")
        if not self.family_ratios and not self.family_users:
            return NO_FINDING
        for kind, jobs in ((family(graph.name), "jobs of this kind"), ("", "jobs")):
            if (kind, submitter.user) in self.family_ratios:
                return Finding(family_ratio=self.family_ratios[kind, submitter.user])
            ratios = _other_users(self.family_users.get((kind,), ()), submitter)
            if ratios:
                return Finding(others=ratios, source=jobs)
        return NO_FINDING

    def why_not_enforced(self, graph: ModelGraph, submitter: Submitter) -> str:
        """Return why no share is enforced for *submitter* and this family for now, one clause; empty where one is."""
        failed = why_whole(self.failures, fingerprint(graph), submitter) if self.failures else ""
        return failed or (self.suspended.get((family(graph.name), submitter.user), "") if self.suspended else "")


NOTHING_LEARNED = Learned()


def _other_users(by_user: ByUser[T], submitter: Submitter) -> tuple[T, ...]:
    """Return what the users but *submitter* showed; nothing where they are too few."""
    others = tuple(showed for user, showed in by_user if user != submitter.user) if by_user else ()
    return others[:MOST_USERS] if len(others) >= LEAST_USERS else ()
