"""How true a site's history is for jobs that name no model, and what that gains: simulated months.

Forty users have one to six scripts each, which come again 4 to 60 times in 90 days; one script in five is one of ten
that go round, with which each user's jobs are up to 40 % more or less busy than another's. One run in ten is an
interactive one without a script, as busy as any job. How busy a job keeps a whole GPU in its busiest minute, and its
memory, are Lucid's of 66 measured jobs (``--data``), or else drawn evenly. Six in ten scripts do the same each time but
for 4 %; a quarter are sweeps, whose runs differ by 30 %; the others are twice as busy after half of the time. How much
longer a share makes the GPU's own time is drawn: from 60 to 100 % of what its fewer SMs could make of it.

Every decision is gpusaged's own, with ``history = "enforce"``; the history is fitted anew each day, and what runs have
earned is judged then and whenever a run has ended out of memory. The first table is what `gpusage train --history`
prints at the end. In the last rows of the second, one user submits 5,000 idle jobs of others' scripts.

Example: python bench/history.py --data ../shared/data
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import exp
from statistics import fmean
from types import MappingProxyType

import msgspec

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.experience.history import GpuLookup, History
from gpusage.experience.runs import Run, history_runs
from gpusage.experience.trust import Check, history_checks, history_trust
from gpusage.experience.unnamed_jobs import SHARPNESS
from gpusage.store.rows import Observation
from gpusage_hooks.types import (
    Allocation,
    Cluster,
    Code,
    DecisionRecord,
    DecisionRequest,
    GpuPool,
    GpuRequest,
    Job,
    JobIdentity,
    RenderedDecision,
    Submitter,
    Usage,
)
from gpusage_hooks.units import MIB, percent
from gpusage_lab.history.evaluation import Calibration, evaluate_history
from gpusage_lab.history.training import HistoryTrainer, fit_history
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of
from tally import WHOLE, Tally

DAYS, DAY_S = 90, 86_400.0
USERS, SCRIPTS, TIMES = 40, (1, 6), (4, 60)
SAME, SWEEP = 0.6, 0.85
"""Shares of the scripts: those that do the same each time; with the sweeps."""
ERROR, SWEEP_ERROR = 0.04, 0.3
"""Standard deviations of a run's logarithm."""
INTERACTIVE = 0.1
GROWTH = (0.6, 1.0)
ALONE = 0.5
"""The part of the runs on a share that have the GPU for themselves."""
ATTACKS = 5000
TEMPLATES, FROM_TEMPLATE, TEMPLATE_ERROR = 10, 0.2, 0.2
GPU, POPULATIONS = "a100-sxm4-40gb", 3
LUCID = "lucid_solo.csv"
ATTACKER = "666"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One run of a job, with what it does."""

    at_s: float
    identity: JobIdentity
    utilization: float
    memory_bytes: float
    whole_s: float
    growth: float


@dataclass(slots=True)
class Outcome:
    """What became of a site: its runs, since which day its history is trusted, and how many runs came after."""

    tally: Tally = field(default_factory=Tally)
    earned_day: int | None = None
    after: int = 0
    past: list[Run] = field(default_factory=list)
    checked: list[Check] = field(default_factory=list)


def arrivals_of(seed: int, solo: Sequence[tuple[float, float]], *, attack: bool) -> list[Arrival]:
    """Return a site's runs, in time, drawn from *solo*: utilizations and bytes."""
    chance = random.Random(seed)  # the same each time
    runs = []
    templates = [(f"t{number:015d}", chance.choice(solo)) for number in range(TEMPLATES)]
    for user in range(USERS):
        for number in range(chance.randint(*SCRIPTS)):
            script, (busy, held_bytes) = f"{user * 10 + number:016d}", chance.choice(solo)
            if chance.random() < FROM_TEMPLATE:
                script, (busy, held_bytes) = chance.choice(templates)
                busy *= exp(chance.gauss(0, TEMPLATE_ERROR))
            runs += _of_script(chance, solo, (str(user), script), (min(busy, 1.0), held_bytes))
    if attack:
        runs += [replace(chance.choice(runs), at_s=chance.uniform(0, DAYS * DAY_S)) for _ in range(ATTACKS)]
        idle = [
            replace(run, identity=replace(run.identity, user=ATTACKER), utilization=0.02, memory_bytes=300 * MIB)
            for run in runs[-ATTACKS:]
        ]
        runs[-ATTACKS:] = idle
    return sorted(runs, key=lambda run: run.at_s)


def _of_script(
    chance: random.Random, solo: Sequence[tuple[float, float]], owner: tuple[str, str], does: tuple[float, float]
) -> list[Arrival]:
    (user, script), (utilization, memory_bytes) = owner, does
    kind, growth, whole_s = chance.random(), chance.uniform(*GROWTH), 3600 * chance.lognormvariate(0, 1)
    error = SWEEP_ERROR if SAME <= kind < SWEEP else ERROR
    who = JobIdentity(user=user, account=f"lab{int(user) % 5}", job_name=f"job{script}", script_digest=script)
    runs = []
    for _ in range(chance.randint(*TIMES)):
        at_s = chance.uniform(0, DAYS * DAY_S)
        identity, (busy, held_bytes) = who, (utilization, memory_bytes)
        if chance.random() < INTERACTIVE:
            identity, (busy, held_bytes) = replace(who, job_name="bash", script_digest=""), chance.choice(solo)
        elif kind >= SWEEP and at_s > DAYS * DAY_S / 2:
            busy *= 2
        runs.append(
            Arrival(
                at_s=at_s,
                identity=identity,
                utilization=min(busy * exp(chance.gauss(0, error)), 1.0),
                memory_bytes=held_bytes * exp(chance.gauss(0, error / 2)),
                whole_s=whole_s,
                growth=growth,
            )
        )
    return runs


class Site:
    """A site with one GPU type that decides by history.

    Args:
        advisor: Has no history yet.
        gpu: The type, by its name.
    """

    def __init__(self, advisor: Advisor, gpu: str) -> None:
        self._advisor, self._gpu = advisor, advisor.catalogue.find(gpu)
        pool = GpuPool(gpu=self._gpu.name, site_type="gpu", gpu_count=64, free_gpu_count=8, mps_per_gpu=WHOLE)
        self._cluster = Cluster(manager="slurm", version="24.11", pools=(pool,))
        self._find_gpu: GpuLookup = cache(advisor.catalogue.find)

    def quarter(self, arrivals: Sequence[Arrival]) -> Outcome:
        """Return what becomes of *arrivals*; history is fitted once a day."""
        outcome, trainer, chance = Outcome(), HistoryTrainer(self._find_gpu), random.Random(0)
        running: list[tuple[float, int, Run, Check | None]] = []
        today, learned = -1, self._advisor.learned
        for number, arrival in enumerate(arrivals):
            is_morning, has_starved = int(arrival.at_s / DAY_S) > today, False
            today = int(arrival.at_s / DAY_S)
            while running and running[0][0] <= arrival.at_s:
                _, _, run, checked = heapq.heappop(running)
                trainer.add(run)
                outcome.past.append(run)
                outcome.checked += [checked] if checked else []
                has_starved |= run.out_of_memory
            if is_morning:
                file = msgspec.json.encode(trainer.history(0.0))
                learned = replace(learned, history=msgspec.json.decode(file, type=History))
            if is_morning or has_starved:
                trust = history_trust(outcome.checked)
                learned = replace(learned, trust=trust)
                if outcome.earned_day is None and any(not trust.why_not(user) for user in trust.users):
                    outcome.earned_day = today
            run, checked = self._run(replace(self._advisor, learned=learned), arrival, outcome, chance)
            heapq.heappush(running, (run.ended_at_s, number, run, checked))
        return outcome

    def _run(
        self, advisor: Advisor, arrival: Arrival, outcome: Outcome, chance: random.Random
    ) -> tuple[Run, Check | None]:
        who = arrival.identity
        fields = {name: getattr(who, name) for name in ("user", "account", "job_name", "script_digest")}
        job = Job(
            submission=DecisionRequest(manager="slurm"),
            request=GpuRequest(gpu_count=1, cpu_count=8),
            request_text="gres/gpu:1",
            submitter=Submitter(fields=MappingProxyType(fields)),
        )
        decision, estimates = replace(advisor, submitter=job.submitter).decide_by_history(job, self._cluster)
        trusted = not advisor.learned.trust.why_not(who.user)
        share = decision.request.mps_thread_percent if decision.code is Code.REWRITE and trusted else None
        size, cap_bytes = share or WHOLE, decision.request.memory_cap_bytes if share else None
        starved = cap_bytes is not None and arrival.memory_bytes > cap_bytes
        slowdown = _slowdown(arrival, size) * (chance.uniform(1.0, 1.1) if share else 1.0)
        took_s = arrival.whole_s * slowdown
        outcome.after += outcome.earned_day is not None
        outcome.tally.add(size, slowdown, arrival.whole_s, starved=starved)
        granted = (
            Allocation(division="percentage", share_percent=size, memory_limit_bytes=cap_bytes)
            if share
            else Allocation()
        )
        usage = Usage(
            number="",
            manager="slurm",
            job_id="",
            user=who.user,
            gpu=self._gpu.name,
            granted=granted,
            outcome="out_of_memory" if starved else "completed",
            started_at_s=arrival.at_s,
            ended_at_s=arrival.at_s + took_s,
            sampled_s=took_s,
            alone_s=took_s if not share or chance.random() < ALONE else 0.0,
            peak_utilization=min(arrival.utilization * _growth(arrival, size) / _slowdown(arrival, size), 1.0),
            memory_bytes=min(int(arrival.memory_bytes), cap_bytes or int(arrival.memory_bytes)),
        )
        record = DecisionRecord(
            decided_at_s=arrival.at_s,
            manager="slurm",
            origin="",
            mode="enforce",
            decision=decision,
            rendered=RenderedDecision(before="", after="", fields={}),
            identity=who,
            history_estimates=estimates,
        )
        observation = Observation(usage=usage, decision=record)
        return next(run for _, run in history_runs([observation], 0.0)), next(history_checks([observation], 0.0), None)


def _growth(arrival: Arrival, size: int) -> float:
    return 1 + (WHOLE / size - 1) * arrival.growth


def _slowdown(arrival: Arrival, size: int) -> float:
    """Return how many times as long a run takes on *size* % of the GPU, alone."""
    busy = arrival.utilization * _growth(arrival, size)
    return float((busy**SHARPNESS + 1 - arrival.utilization**SHARPNESS) ** (1 / SHARPNESS))


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return how true history is, and what it gains, with one user's attack and without."""
    chance = random.Random(0)  # the same each time
    drawn = [(chance.uniform(0.1, 1), chance.uniform(1, 20) * 2**30) for _ in range(66)]
    solo, advisor = lucid(data) if LUCID in data else drawn, make_advisor()
    plain, attacked = (
        [Site(advisor, GPU).quarter(arrivals_of(seed, solo, attack=attack)) for seed in range(POPULATIONS)]
        for attack in (False, True)
    )

    # What `gpusage train --history` prints of each site at the end.
    find_gpu = cache(advisor.catalogue.find)
    calibrations = []
    for outcome in plain:
        history, backtests = fit_history(outcome.past, find_gpu, 0.0)
        calibrations.append(evaluate_history(backtests, history, find_gpu))
    accuracy = mean_calibration(calibrations)
    return [accuracy, gains(plain, attacked)]


def lucid(data: DataFolder) -> list[tuple[float, float]]:
    """Return utilization and memory of Lucid's jobs alone on a GPU."""
    table = data.read(LUCID)
    pairs = zip(table["gpu_util_pct"], table["gmem_MiB"], strict=True)
    return [(float(busy) / 100, float(mib) * MIB) for busy, mib in pairs if busy > 0]


def mean_calibration(sites: Sequence[Sequence[Calibration]]) -> ScoreTable:
    """Return the means over *sites* of what `gpusage train --history` prints."""
    rows = defaultdict(list)
    for site in sites:
        for row in site:
            rows[row.split, row.quantity, row.predictor].append(row)
    columns = ("split", "quantity", "predictor", "estimated", "below the upper end", "inside", "error")
    return ScoreTable(
        title=f"How true history is, the mean of {len(sites)} sites",
        columns=(*columns, "symmetric accuracy"),
        rows=tuple((*key, *figures_of(each)) for key, each in rows.items()),
    )


def figures_of(rows: Sequence[Calibration]) -> Iterator[str | None]:
    """Yield the cells of one predictor."""
    estimated = [row for row in rows if row.estimated]
    yield percent(fmean(row.estimated / row.runs for row in rows))
    for end in ("below", "inside"):
        yield mean_percent(getattr(row, end) / row.estimated for row in estimated if getattr(row, end) is not None)
    for name in ("error", "symmetric_accuracy"):
        yield mean_percent(getattr(row, name) for row in estimated)


def mean_percent(parts: Iterable[float]) -> str | None:
    """Return the mean of *parts*, if there are any."""
    known = list(parts)
    return f"{100 * fmean(known):.1f} %" if known else None


def gains(plain: Sequence[Outcome], attacked: Sequence[Outcome]) -> ScoreTable:
    """Return what became of each site's runs."""
    columns = (
        "site",
        "runs",
        "earned on day",
        "checked runs of others that held",
        "runs on a share after that",
        "GPU time saved",
        "of the shares at most 25 % slower",
        "more than 50 % slower",
        "starved of memory",
    )
    ways = {"": plain, ", one user submits 5,000 idle jobs": attacked}
    rows = (gain(f"{seed}{way}", each) for way, outcomes in ways.items() for seed, each in enumerate(outcomes))
    return ScoreTable(
        title='With history = "enforce" from the first day',
        columns=columns,
        rows=tuple(rows),
        notes=("The 5,000 idle jobs count in all columns but that of others.",),
    )


def gain(site: str, outcome: Outcome) -> tuple[Cell, ...]:
    """Return the row of one site."""
    tally = outcome.tally
    of_shares = (100 * part / max(tally.shared, 1) for part in (tally.within_limit, tally.broken, tally.starved))
    held = 100 * fmean(each.held for each in outcome.checked if each.user != ATTACKER)
    after, saved = tally.shared / max(outcome.after, 1), 100 * (1 - tally.used_s / tally.whole_s)
    shown = (f"{part:.1f} %" for part in (held, 100 * after, saved, *of_shares))
    return (site, f"{tally.runs:,}", outcome.earned_day, *shown)


main = command_of("history", tables, ())

if __name__ == "__main__":
    main()
