"""Runs of a site's jobs -> what it has learned.

Invariants:

1. The order in which runs come in changes nothing; when they ended does.
2. Others count only where there are two of them, each once: nobody's jobs are decided by one stranger's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gpusage.learning.experience import experience, remembered
from gpusage.learning.findings import Habit
from gpusage.learning.habits import habit, habit_ratio
from gpusage.learning.learned import Key, Learned, Model
from gpusage.learning.promises import WINDOW, is_kept, is_mistrusted
from gpusage.learning.runs import Run

LEAST_USERS = 2


def learn(runs: Iterable[Run]) -> Learned:
    """Return what *runs*, in any order, teach."""
    runs = sorted(runs, key=lambda run: run.ended_at_s)
    by_job = _grouped(runs, lambda run: (*_model(run), run.identity.user, run.identity.job_name))
    by_user = _grouped(runs, lambda run: (*_model(run), run.identity.user))
    jobs, users = ({key: remembered(of_key) for key, of_key in groups.items()} for groups in (by_job, by_user))
    models = _grouped(runs, _model)
    experiences = {key: experience(of_key) for groups in (users, jobs) for key, of_key in groups.items()}
    experiences |= {key: experience(mixed) for key, of_key in models.items() if (mixed := _each_once(of_key))}
    return Learned(
        models=frozenset(map(_model, runs)),
        experiences=experiences,
        habits=_habits(jobs.values()),
        mistrusted=_mistrusted(jobs.values()),
    )


def _model(run: Run) -> Model:
    return run.identity.fingerprint, run.manner


def _grouped(runs: Iterable[Run], key_of: Callable[[Run], Key]) -> Mapping[Key, list[Run]]:
    groups: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key_of(run)].append(run)
    return groups


def _each_once(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the newest run of each user; none where they are too few."""
    newest = {run.identity.user: run for run in runs}
    return list(newest.values()) if len(newest) >= LEAST_USERS else ()


def _habits(jobs: Collection[Sequence[Run]]) -> Mapping[Key, Habit]:
    kinds: dict[Key, list[Sequence[Run]]] = defaultdict(list)
    for runs in jobs:
        who = runs[-1].identity
        for key in {(who.family, who.user), (who.family, ""), ("", who.user), ("", "")}:
            kinds[key].append(runs)
    habits = {key: habit(of_kind) for key, of_kind in kinds.items() if key[1] or _is_of_several(of_kind)}
    return {key: each for key, each in habits.items() if each is not None}


def _is_of_several(jobs: Iterable[Sequence[Run]]) -> bool:
    """Tell whether jobs of several users tell how busy they were against what was predicted."""
    return len({runs[-1].identity.user for runs in jobs if habit_ratio(runs) is not None}) >= LEAST_USERS


def _mistrusted(jobs: Iterable[Sequence[Run]]) -> Mapping[Key, str]:
    promises: dict[Key, list[tuple[float, bool]]] = defaultdict(list)
    for runs in jobs:
        for run in runs:
            kept = is_kept(run, runs)
            if kept is not None:
                promises[run.identity.family, run.identity.user].append((run.ended_at_s, kept))
    in_order = {key: [each for _, each in sorted(kept)] for key, kept in promises.items()}
    return {key: _why(key[0], kept) for key, kept in in_order.items() if is_mistrusted(kept)}


def _why(kind: str, kept: Sequence[bool]) -> str:
    newest = kept[-WINDOW:]
    missed = f"{newest.count(False)} of the last {len(newest)} predictions for your {kind} jobs"
    return f"{missed} missed, so gpusage only advises until they hold again"
