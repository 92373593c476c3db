"""The experience of a site with jobs that name a model, and how a job finds its part of it.

`learning` makes it, so that this is imported quickly.

Invariants:

1. The nearest experience counts: of this job by its name, of this user with this model, of others with this model.
   Of these `LEAST_USERS` are needed, each of whom counts once.
2. The submitter's fields are read only where the model, or another job at all, has been seen or has failed: a response
   that rests on fewer fields holds for more jobs.
3. A job that failed in a share for a reason that nobody knows gets a whole GPU the next time: the share may have been
   the reason, and a client that submits a failed job again soon must not get the same share. A user's failures concern
   that user's jobs alone. A later run lifts them that completed on a share, or showed how much memory the job takes:
   from then on that decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from gpusage.experience.finished_jobs import SOUND
from gpusage.experience.identity import LEAST_USERS, MOST_USERS, family, fingerprint, settings_key
from gpusage.experience.trust import NO_TRUST, HistoryTrust
from gpusage_hooks.types import (
    Code,
    Decision,
    Figure,
    Interval,
    JobIdentity,
    ModelGraph,
    ModelRequest,
    ObservedFigures,
    Outcome,
    Submitter,
    Workload,
)
from gpusage_hooks.units import WHOLE_PERCENT, gib

if TYPE_CHECKING:
    from gpusage.experience.history import History
    from gpusage.store.rows import Observation  # what decides has no store

CONTRADICTING_RUNS = 5
"""So many runs alone on one whole GPU outweigh the utilization that a user gives."""

FIRST_RUN_MARGINS = (1.5, 1.3, 1.3, 1.15)
"""How much more the next run of a script may take than any of so many; `history.DEFAULT_MARGINS` has the same."""

FAILED: tuple[Outcome, ...] = ("failed", "out_of_memory")
REASON = "the last job like it failed in its share of a GPU, so this one has the whole GPU"

Likeness = tuple[str, ...]
"""Of two jobs of one model: the same user, and the same name or script."""
Failures = Mapping[str, frozenset[Likeness]]
"""By the model's fingerprint; ``""`` stands for jobs that name no model."""
NO_FAILURES: Failures = {}

GpuShare = tuple[str, int]
"""A GPU, and the percentage of it."""
Model = tuple[str, str]
"""A fingerprint, and the settings of a step."""
Key = tuple[str, ...]
T = TypeVar("T")
ByUser = tuple[tuple[str, T], ...]
"""By user, of several users, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """The figures of one job's earlier runs.

    Attributes:
        run_count: How many there were that count.
        utilization: Alone, by GPU and percentage.
        utilization_runs: How many runs each of these rests on.
        slowdown: By GPU and percentage below 100, the duration against that on the whole GPU; at least 1.
        memory_bytes: The peak, and how far it may go.
        peak_bytes: By GPU, the largest peak of the runs that saw all of its memory.
        slices: Those of these GPUs that are slices (MIG).
        is_memory_assumed: Whether each of these runs lacked memory: 1.25 times the part that was too small.
        walled_share: The largest part of what it saw that a run behind a wall took; 0 without one.
    """

    run_count: int
    utilization: Mapping[GpuShare, Interval]
    utilization_runs: Mapping[GpuShare, int]
    slowdown: Mapping[GpuShare, float]
    memory_bytes: Interval | None
    peak_bytes: Mapping[str, float] = field(default_factory=dict)
    is_memory_assumed: bool = False
    walled_share: float = 0.0
    slices: frozenset[str] = frozenset()

    def contradicts(self, utilization: float | None) -> bool:
        """Return whether many runs on whole GPUs rule out *utilization*, or any where it is ``None``."""
        observed = [
            interval
            for (gpu, percent), interval in self.utilization.items()
            if percent == WHOLE_PERCENT and gpu not in self.slices
            if self.utilization_runs[gpu, percent] >= CONTRADICTING_RUNS
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
    """The experience that applies to a job, before it runs.

    Attributes:
        experience: Of its own earlier runs, or its user's of this model.
        source: The name of these runs for people: ``earlier runs``.
        family_ratio: Of its user's jobs of this family, where it never ran.
        others: Of several other users' runs of this model, or of its family; one for each user.
    """

    experience: Experience | None = None
    source: str = ""
    family_ratio: FamilyRatio | None = None
    others: tuple[Experience | FamilyRatio, ...] = ()

    def describe(self, gpu: str) -> str:
        """Return the finding on *gpu* in one clause; empty without one."""
        if self.others:
            return f"{self.source} of {len(self.others)} other users count, within the prediction from the graph"
        if self.experience is None:
            if self.family_ratio is None:
                return ""
            ratio = self.family_ratio.ratio
            factor = f"{ratio.value:.2f} times ({ratio.low:.2f}-{ratio.high:.2f}) as busy as predicted"
            return f"{self.family_ratio.job_count} other jobs of this kind were {factor}"

        # Runs on this GPU come first, then runs on any other.
        experience, counts = self.experience, self.experience.utilization_runs
        shares = [share for share in experience.utilization if share[0] == gpu] or [*experience.utilization]
        if not shares:
            memory = experience.memory_bytes
            counted = run_count(experience.run_count, self.source)
            if not memory:
                return ""
            figure = f"{gib(memory.value)} (up to {gib(memory.high)})"
            needed = f"lacked memory: {figure} is assumed" if experience.is_memory_assumed else f"needed {figure}"
            return f"{counted} {needed}"

        gpu, percent = share = max(shares, key=lambda share: (share[1], counts[share]))
        utilization, count = experience.utilization[share], counts[share]
        ends = f"{100 * utilization.low:.0f}-{100 * utilization.high:.0f}"
        place = gpu if percent == WHOLE_PERCENT else f"{percent} % of {gpu}"
        verb = "were" if count > 1 else "was"
        busy = f"busy {100 * utilization.value:.0f} % ({ends}) of the time on {place}"
        return f"{run_count(count, self.source)} {verb} {busy}"


NO_FINDING = Finding()


def describe_jobs(numbers: str) -> str:
    """Return the runs of jobs, with ``+`` between their *numbers*, for people: ``job 7's run``."""
    jobs = numbers.split("+")
    return f"job {jobs[0]}'s run" if len(jobs) == 1 else f"the runs of jobs {', '.join(jobs)}"


def run_count(count: int, runs: str) -> str:
    """Return how many runs a figure rests on: ``12 earlier runs``, ``1 earlier run``."""
    return f"{count} {runs if count > 1 else runs.replace('runs', 'run', 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRun:
    """The usage of a run that named no model, alone on a whole GPU.

    Attributes:
        gpu: By its name of the catalogue.
        utilization: NVML's mean, 0 to 1.
        peak_utilization: NVML's of the busiest minute.
        memory_bytes: Its peak.
    """

    gpu: str
    utilization: float
    peak_utilization: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The experience of a site.

    Attributes:
        models: Those that have been seen.
        experiences: By model and user; by model, user and job name.
        family_ratios: By family and user, and by user; the family is then empty.
        model_users: By model, of several users at least.
        family_users: By family, and of the whole site, the family then empty; of several users at least.
        suspended: By family and user, why no share is enforced for now.
        failures: Jobs that failed in their shares, for a reason that nobody knows.
        history: Of jobs that name no model; ``None`` without one.
        trust: In that history.
        first_runs: Figures of jobs that named no model, by user and number: the next jobs of their scripts rest on
            them.
        smallest_shares: As in `Cluster`.
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
    first_runs: Mapping[tuple[str, str], FirstRun] = field(default_factory=dict)
    smallest_shares: Mapping[str, int] = field(default_factory=dict)

    def with_first_run(self, request: ModelRequest, submitter: Submitter) -> ModelRequest:
        """Return *request* with the utilization of the runs that showed it, if *submitter*'s nodes sampled one."""
        alone = request.workload.alone
        runs = self._first_runs(request, submitter) if request.first_run and alone.utilization is None else ()
        if not runs:
            return request
        utilization = max(run.utilization for _, run in runs)
        workload = replace(request.workload, alone=replace(alone, utilization=utilization))
        return replace(request, workload=workload)

    def measured(self, request: ModelRequest, submitter: Submitter) -> Mapping[str, ObservedFigures]:
        """Return the figures of the earlier runs that *request* names, on the GPU of the newest; none of other GPUs."""
        runs = self._first_runs(request, submitter)
        if not runs:
            return {}
        gpu = runs[0][1].gpu
        runs = [(job, run) for job, run in runs if run.gpu == gpu]
        utilizations, memories = ([run.peak_utilization for _, run in runs], [run.memory_bytes for _, run in runs])
        margin = FIRST_RUN_MARGINS[min(len(runs), len(FIRST_RUN_MARGINS)) - 1]

        alone = request.workload.alone
        is_timed = alone.gpu == gpu and alone.step_batch_size in (None, request.workload.batch_size)
        timed = f", {1e3 * alone.step_time_s:.3g} ms a step" if alone.step_time_s and is_timed else ""
        source = f"measured on {gpu} in {describe_jobs('+'.join(job for job, _ in runs))}{timed}"
        busy = Interval(value=max(utilizations), low=min(utilizations), high=min(margin * max(utilizations), 1.0))
        memory = Interval(value=max(memories), low=min(memories), high=margin * max(memories))
        figures = (Figure(interval=each, source=source) for each in (busy, memory))
        return {gpu: ObservedFigures(gpu_utilization=next(figures), memory_bytes=next(figures))}

    def _first_runs(self, request: ModelRequest, submitter: Submitter) -> Sequence[tuple[str, FirstRun]]:
        """Return the runs that *request* names, the newest first."""
        # A user may name any number; only that user's own runs are under it.
        if not (self.first_runs and request.first_run):
            return ()
        runs = ((job, self.first_runs.get((submitter.user, job))) for job in request.first_run.split("+"))
        return [(job, run) for job, run in runs if run is not None]

    def find(self, graph: ModelGraph, workload: Workload, submitter: Submitter) -> Finding:
        """Return the experience that applies to a job of *submitter*, or `NO_FINDING`."""
        # A site that has learned nothing need not walk the graph for its fingerprint.
        model = (fingerprint(graph), settings_key(workload)) if self.models else ("", "")
        if model in self.models:
            own = (*model, submitter.user)
            for key, source in (((*own, submitter.job_name), "earlier runs"), (own, "earlier runs of this model")):
                if key in self.experiences:
                    return Finding(experience=self.experiences[key], source=source)
            others = _other_users(self.model_users.get(model, ()), submitter)
            if others:
                return Finding(others=others, source="runs of this model")

        # A job that never ran: how busy others of its family were, then any others.
        if not self.family_ratios and not self.family_users:
            return NO_FINDING
        for kind, jobs in ((family(graph.name), "jobs of this kind"), ("", "jobs")):
            if (kind, submitter.user) in self.family_ratios:
                return Finding(family_ratio=self.family_ratios[kind, submitter.user])
            ratios = _other_users(self.family_users.get((kind,), ()), submitter)
            if ratios:
                return Finding(others=ratios, source=jobs)
        return NO_FINDING

    def without_failed_slice(self, decision: Decision, graph: ModelGraph, submitter: Submitter) -> Decision:
        """Return *decision* with the next larger GPU in place of its slice, if the last job like it failed in one.

        The job's own request, for any GPU, may land on such a slice again.
        """
        larger = decision.request.preferred_gpus
        if not larger or not self.failures or not why_whole(self.failures, fingerprint(graph), submitter):
            return decision
        request = replace(decision.request, slice_type=larger[0], preferred_gpus=(), memory_cap_bytes=None)
        reason = f"the last job like it failed in its part of a GPU, so this one has {larger[0]}"
        return replace(decision, request=request, reasons=(reason,), need=None)

    def why_not_enforced(self, graph: ModelGraph, submitter: Submitter, decision: Decision | None = None) -> str:
        """Return why no share is enforced for *submitter* and this family for now, one clause; empty where one is."""
        # What `without_failed_slice` returns is larger already.
        is_larger = decision is not None and decision.request.slice_type and decision.request.memory_cap_bytes is None
        failed = why_whole(self.failures, fingerprint(graph), submitter) if self.failures and not is_larger else ""
        return failed or (self.suspended.get((family(graph.name), submitter.user), "") if self.suspended else "")


NOTHING_LEARNED = Learned()


def _other_users(by_user: ByUser[T], submitter: Submitter) -> tuple[T, ...]:
    """Return the experience of the users but *submitter*; none of too few users."""
    others = tuple(showed for user, showed in by_user if user != submitter.user) if by_user else ()
    return others[:MOST_USERS] if len(others) >= LEAST_USERS else ()


def likenesses(model: str, job: JobIdentity | Submitter) -> frozenset[Likeness]:
    """Return the likenesses of *job* and another of *model*, a fingerprint; without one, name and script must agree."""
    user, name, digest = job.user, job.job_name, job.script_digest
    if not model:
        return frozenset({(user, name, digest)} if digest else ())
    return frozenset({(user, "name", name), *([(user, "script", digest)] if digest else [])})


def with_failures(failures: Failures, identities: Iterable[JobIdentity]) -> Failures:
    """Return *failures* and those of jobs of *identities*."""
    more = dict(failures)
    for identity in identities:
        model = identity.fingerprint
        more[model] = more.get(model, frozenset()) | likenesses(model, identity)
    return more


def failures_of(observations: Iterable[Observation], least_s: float, failures: Failures = NO_FAILURES) -> Failures:
    """Return the failures that *observations*, in any order, show, and that no later one lifts.

    Args:
        observations: With their decisions, as far as the store still has these.
        least_s: A run that was sampled for less does not show its memory.
        failures: Of other users' jobs, which stay.
    """
    ordered = sorted(observations, key=lambda each: each.usage.ended_at_s)
    # One container that ran out of memory decides for its whole job, whichever container ends last.
    starved = {(each.usage.job_id, each.usage.number) for each in ordered if each.usage.outcome == "out_of_memory"}
    for each in ordered:
        usage, identity = each.usage, each.decision.identity if each.decision else None
        # In the other modes the job had its own request.
        if each.decision is None or identity is None or each.decision.mode != "enforce":
            continue

        is_part = usage.granted.share_percent < WHOLE_PERCENT or usage.granted.division == "slice"
        on_share = each.decision.decision.code is Code.REWRITE and is_part
        if on_share and usage.outcome in FAILED:
            failures = with_failures(failures, [identity])
        elif usage.outcome in SOUND and identity.fingerprint in failures:
            # A whole GPU that the job did not need says nothing, unless its memory was measured.
            shows_memory = usage.memory_bytes is not None and usage.sampled_s >= least_s
            is_starved = usage.granted.share_percent < WHOLE_PERCENT and (usage.job_id, usage.number) in starved
            if (on_share or shows_memory) and not is_starved:
                model = identity.fingerprint
                failures = {**failures, model: failures[model] - likenesses(model, identity)}

    return {model: alike for model, alike in failures.items() if alike}


def why_whole(failures: Failures, model: str, submitter: Submitter) -> str:
    """Return why a job of *submitter* gets no share, one clause; empty where no failure is known.

    The submitter's fields are read only where a job of the *model*, by its fingerprint, has failed.
    """
    alike = failures.get(model)
    if not alike:
        return ""
    return REASON if alike & likenesses(model, submitter) else ""
