"""Runs of a site's jobs that name a model -> its experience.

Invariants:

1. The order in which runs come in changes nothing; when they ended does.
2. One user's runs never mix with another's; `estimates.narrowed` combines the experience of others.
3. Only the newest runs count, and of each GPU and percentage as many, so that none drives another out: what is decided
   by the experience of one share does not take that experience away.
4. Experience is absolute, observed on a GPU; nothing depends on what was predicted, so nothing feeds back. A family's
   ratio compares with predictions by the graph alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, hypot, inf, log, sqrt
from statistics import median
from typing import TypeVar

from gpusage.experience.finished_jobs import LEAST_UTILIZATION, SOUND, own_utilization
from gpusage.experience.identity import LEAST_USERS, MOST_USERS
from gpusage.experience.learned import ByUser, Experience, FamilyRatio, FirstRun, GpuShare, Key, Learned
from gpusage.experience.runs import OUT_OF_MEMORY_MARGIN, WINDOW_RUNS, Run, slowdown
from gpusage.experience.trust import suspensions
from gpusage.predictors.intervals import NINETY_PERCENT, clip_to_one
from gpusage_hooks.types import Allocation, Interval, Usage
from gpusage_hooks.units import WHOLE_PERCENT

REMEMBERED_RUNS = 50
"""On one share, or on the whole GPU: bounds the time of learning."""
LEFT_MARGIN = 1.1
"""How much more expensive a share counts that was given up for the whole GPU after its time was known."""
FULL, NOT_FULL, LEAST_FULL = 0.95, 0.8, 2
"""A share that is this busy is full; one that can be at most so busy is not; so many runs show a change."""
CHANGED = 0.2
"""Whole runs that differ by less show that there was no change."""
MEMORY_MARGINS = (1.25, 1.1)
"""How much more the next run may take than any before: after one run, and after several."""
RUN_DEVIATION = 0.08
"""Standard deviation of one run's logarithm against the job's own median: repeated runs of one job in public tables
differ by 5 to 10 %."""
JOB_DEVIATION = 0.05
"""What is left however many runs there were: the next one may be on another node, with other files."""
MAD_TO_DEVIATION = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""
RATIO_BOUNDS = (0.2, 1.25)
"""Of observed over predicted utilization."""
LEAST_JOBS = 3
"""Of one user, that say something of another job of that user."""
PRIOR_JOBS = 2.0
"""So many jobs that were just as predicted are taken to have been seen as well."""
T = TypeVar("T")


def learn(runs: Iterable[Run]) -> Learned:
    """Return the experience of *runs* of models, in any order."""
    # A run is known from its end on.
    runs = sorted(runs, key=lambda run: run.ended_at_s)
    jobs = {key: _newest_of_each_share(of_job) for key, of_job in _grouped(runs, lambda run: run.job).items()}
    by_user = _grouped(runs, lambda run: run.job[:-1])
    users = {key: _newest_of_each_share(of_user) for key, of_user in by_user.items()}
    experiences = {key: job_experience(of_user) for key, of_user in users.items()}
    # Most users run a model under one name: the experience of both is one object then.
    for key, of_job in jobs.items():
        experiences[key] = experiences[key[:-1]] if of_job == users[key[:-1]] else job_experience(of_job)

    # The runs of each job by family and user, and by user, whose jobs are the empty family; the newest job last.
    families: dict[Key, list[Sequence[Run]]] = defaultdict(list)
    for of_job in sorted(jobs.values(), key=lambda runs: runs[-1].ended_at_s):
        identity = of_job[-1].identity
        for name in {identity.family, ""}:
            families[name, identity.user].append(of_job)
    ratios = {key: ratio for key, of_family in families.items() if (ratio := family_ratio(of_family)) is not None}

    return Learned(
        models=frozenset((run.identity.fingerprint, run.settings) for run in runs),
        experiences=experiences,
        family_ratios={key: ratio for key, ratio in ratios.items() if ratio.job_count >= LEAST_JOBS},
        model_users=_by_users(
            (key, of_user[-1].ended_at_s, experiences[key])
            for key, of_user in users.items()
            if experiences[key].utilization
        ),
        family_users=_by_users((key, families[key][-1][-1].ended_at_s, ratio) for key, ratio in ratios.items()),
        suspended=suspensions(jobs.values()),
    )


def first_runs(usages: Iterable[Usage], least_s: float) -> Mapping[tuple[str, str], FirstRun]:
    """Return the sound runs alone on one whole GPU, by user and job; *usages* have the newest run first."""
    runs: dict[tuple[str, str], FirstRun] = {}
    for usage in usages:
        # `Allocation()` is a whole GPU, nothing withheld.
        is_whole = usage.granted == Allocation() and (usage.gpu_count or 1) == 1 and usage.outcome in SOUND
        utilization = own_utilization(usage, least_s) if is_whole else None
        if utilization is not None and utilization >= LEAST_UTILIZATION and usage.memory_bytes:
            run = FirstRun(
                gpu=usage.gpu,
                utilization=utilization,
                peak_utilization=min(max(usage.peak_utilization or 0.0, utilization), 1.0),
                memory_bytes=usage.memory_bytes,
            )
            runs.setdefault((usage.user_id or usage.user, usage.job_id), run)
    return runs


def _grouped(runs: Iterable[Run], key_of: Callable[[Run], Key]) -> Mapping[Key, list[Run]]:
    groups: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key_of(run)].append(run)
    return groups


def _newest_of_each_share(runs: Sequence[Run]) -> list[Run]:
    """Return the newest of *runs*, oldest first: of each GPU and percentage as many."""
    counts: Counter[GpuShare] = Counter()
    newest = []
    for run in reversed(runs):
        counts[run.gpu, run.share_percent] += 1
        if counts[run.gpu, run.share_percent] <= REMEMBERED_RUNS:
            newest.append(run)
    return newest[::-1]


def _by_users(each: Iterable[tuple[Key, float, T]]) -> Mapping[Key, ByUser[T]]:
    """Group the experience of several users by all of their key but the user, who stands last in it.

    One user more than counts is left in, for the job's own is left out.
    """
    groups: dict[Key, list[tuple[float, str, T]]] = defaultdict(list)
    for (*key, user), ended_at_s, showed in each:
        groups[tuple(key)].append((ended_at_s, user, showed))
    newest = {key: sorted(group, key=lambda one: one[:2], reverse=True) for key, group in groups.items()}
    return {
        key: tuple((user, showed) for _, user, showed in group[: MOST_USERS + 1])
        for key, group in newest.items()
        if len(group) >= LEAST_USERS
    }


def family_ratio(jobs: Sequence[Sequence[Run]]) -> FamilyRatio | None:
    """Return how busy *jobs* of one user, the runs of each, were against predictions; ``None`` where none shows it.

    Each job counts once, however often it ran. The upper end is the busiest job: a share is promised only where it
    would do for that one.
    """
    least, most = RATIO_BOUNDS
    ratios = []
    for runs in jobs:
        of_job = [
            run.utilization / run.predicted_utilization
            for run in runs
            if run.utilization and run.predicted_utilization and run.share_percent == WHOLE_PERCENT
        ]
        # Bounded: one strange job says little of the others.
        ratios += [min(max(median(of_job), least), most)] if of_job else []
    if not ratios:
        return None

    # The median of the logarithms, shrunk towards 1 by as many jobs that were just as predicted.
    value = exp(len(ratios) / (len(ratios) + PRIOR_JOBS) * median(map(log, ratios)))
    high, low = max(*ratios, value), min(*ratios, value)
    return FamilyRatio(job_count=len(ratios), ratio=Interval(value=value, low=low, high=high))


def job_experience(runs: Sequence[Run]) -> Experience:
    """Return the experience of *runs* of one job, oldest first."""
    runs = _since_change(runs)
    by_share: dict[GpuShare, list[float]] = defaultdict(list)
    for run in runs:
        if run.utilization is not None:
            by_share[run.gpu, run.share_percent].append(run.utilization)

    # A run that died took what it could get.
    peak_bytes: dict[str, float] = defaultdict(float)
    walled_share = 0.0
    for run in (run for run in runs[-WINDOW_RUNS:] if run.memory_bytes and not run.out_of_memory):
        if not run.is_walled:
            peak_bytes[run.gpu] = max(peak_bytes[run.gpu], run.memory_bytes or 0)
        elif run.memory_limit_bytes:
            walled_share = max(walled_share, (run.memory_bytes or 0) / run.memory_limit_bytes)

    newest = {share: values[-WINDOW_RUNS:] for share, values in by_share.items()}
    return Experience(
        run_count=min(len(runs), WINDOW_RUNS),
        utilization={share: clip_to_one(median_interval(values)) for share, values in newest.items()},
        utilization_runs={share: len(values) for share, values in newest.items()},
        slowdown=_slowdowns(runs),
        memory_bytes=_memory(runs),
        is_memory_assumed=not any(run.memory_bytes and not run.out_of_memory for run in runs),
        peak_bytes=peak_bytes,
        walled_share=walled_share,
        slices=frozenset(run.gpu for run in runs if run.is_slice),
    )


def _since_change(runs: Sequence[Run]) -> Sequence[Run]:
    """Return *runs* without whole ones from before the job changed: later its share was full, and could not have been.

    A share makes the GPU's own time at most as many times as long as it has fewer SMs. Where whole runs show later that
    nothing has changed, this share does make it longer, and that is no reason to forget anything.
    """
    full: list[int] = []
    for index, run in enumerate(runs):
        if run.share_percent == WHOLE_PERCENT or (run.utilization or 0) < FULL:
            continue
        usual = _whole_utilization(runs[:index])
        if usual is None or usual * WHOLE_PERCENT / run.share_percent >= NOT_FULL:
            continue
        full.append(index)
        if len(full) == LEAST_FULL:
            # Whole runs since the second full share may show that the job is as it was.
            later = _whole_utilization(runs[index:])
            if later is not None and abs(later / usual - 1) < CHANGED:
                return runs
            return [*(run for run in runs[: full[0]] if run.share_percent < WHOLE_PERCENT), *runs[full[0] :]]

    return runs


def _whole_utilization(runs: Sequence[Run]) -> float | None:
    """Return the median utilization of the newest whole runs among *runs*."""
    whole = [
        run.utilization for run in runs if run.utilization and run.share_percent == WHOLE_PERCENT and not run.is_slice
    ]
    return median(whole[-WINDOW_RUNS:]) if whole else None


def _slowdowns(runs: Iterable[Run]) -> Mapping[GpuShare, float]:
    """Return how many times as long each share took, by the worst ever observed: once expensive, always expensive.

    Else a share that is at the site's limit would be taken and left by the chance of a few runs, on it or on the whole
    GPU. One that was given up counts as a little more expensive than observed, so that it is not taken again by a hair.
    """
    durations_s: dict[GpuShare, list[float]] = defaultdict(list)
    worst: dict[GpuShare, float] = {}
    left: set[GpuShare] = set()
    last: GpuShare | None = None
    for run in runs:
        if run.duration_s is None:
            continue
        current, whole = (run.gpu, run.share_percent), (run.gpu, WHOLE_PERCENT)
        # Its next run had the whole GPU, so the share was given up.
        if last in worst and current == whole:
            left.add(last)
        durations_s[current].append(run.duration_s)

        # A whole run changes how every share of this GPU compares with it.
        for share in [share for share in durations_s if share[0] == run.gpu and share[1] < WHOLE_PERCENT]:
            shared_s, whole_s = (durations_s[each][-WINDOW_RUNS:] for each in (share, whole))
            observed = slowdown(median(shared_s), shared_s, whole_s)
            if observed is not None:
                worst[share] = max(observed, worst.get(share, observed))
        last = current
    return {share: observed * LEFT_MARGIN ** (share in left) for share, observed in worst.items()}


def _memory(runs: Sequence[Run]) -> Interval | None:
    """Return the peak of *runs* and how far the next may go: never beyond a cap under which one did its work."""
    # A run that died took what it could get; how much it needed nobody saw.
    served = [run for run in runs if run.memory_bytes and not run.out_of_memory][-WINDOW_RUNS:]
    lacking = [run.required_bytes or 0.0 for run in runs if run.out_of_memory][-WINDOW_RUNS:]
    least = max(lacking, default=0.0)
    if not served:
        return Interval(value=least, low=least, high=OUT_OF_MEMORY_MARGIN * least) if least else None

    # Beyond a cap under which a run did its work, the next one need not go. A cap that holds each process alone does
    # not hold their sum.
    peaks = [float(run.memory_bytes or 0) for run in served]
    margin = MEMORY_MARGINS[len(peaks) > 1]
    limits = [run.memory_limit_bytes or inf for run in served]
    ends = (min(margin * peak, limit if peak <= limit else inf) for peak, limit in zip(peaks, limits, strict=True))
    return Interval(value=median(peaks), low=min(peaks), high=max(*ends, *peaks, least))


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median of *values*, each above 0, with a 90 % prediction interval for the next run, in logarithms.

    The scatter is the median absolute deviation: one outlier moves it little, and few runs leave a wide interval.
    """
    logs = [log(value) for value in values]
    center = median(logs)
    scatter = MAD_TO_DEVIATION * median(abs(value - center) for value in logs)
    deviation = max(RUN_DEVIATION, scatter)
    spread = NINETY_PERCENT * hypot(JOB_DEVIATION, deviation, deviation / sqrt(len(logs)))
    return Interval(value=exp(center), low=exp(center - spread), high=exp(center + spread))
