"""Keeps what a site has learned fresh from the store, in the background.

Invariants:

1. Nobody who answers waits for it: it reads in a thread of its own, and hands over a whole value.
2. A store that cannot be read leaves in place what was learned before.
3. Where a run has come, all that counts is learned from anew: the order in which runs come changes nothing.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from gpusage.configuration import Configuration, LearningSettings
from gpusage.history.file import read_history
from gpusage.history.history import History
from gpusage.history.reading import checked_runs
from gpusage.history.trust import trust_of
from gpusage.learning.learned import NOTHING_LEARNED, Learned
from gpusage.learning.lessons import learn
from gpusage.learning.runs import runs_of
from gpusage.service.watch import Watch
from gpusage.store.decisions import DAY_S, DecisionStore
from gpusage.store.opening import open_store
from gpusage.store.usage_rows import UsageQuestion
from gpusage_hooks.errors import RequestError

MOST_RUNS, MOST_OF_A_USER = 20_000, 2_000
"""The newest of them; a site with more learns nothing else from the rest, and no user takes all of the room."""

RELEARN_S = 3600.0
"""A run that came late, after others that ended later, is learned from within this time."""

_log = logging.getLogger(__name__)


def learned_from(store: DecisionStore, settings: LearningSettings, now_s: float) -> Learned:
    """Return what the runs in *store* teach.

    Raises:
        StoreError: It cannot be read.
    """
    if not settings.enabled:
        return NOTHING_LEARNED
    question = UsageQuestion(
        since_s=now_s - settings.days * DAY_S,
        least_run_s=settings.least_sampled_s,
        count=MOST_RUNS,
        count_per_user=MOST_OF_A_USER,
    )
    observations = store.observations(question)
    learned = learn([run for _, run in runs_of(observations, settings.least_sampled_s)])
    if settings.history != "off":
        trust = trust_of(checked_runs(observations, settings.least_sampled_s))
        learned = replace(learned, history=_history(Path(settings.history_file), _written_ns(settings)), trust=trust)
    return learned if settings.back_off else replace(learned, mistrusted={})


@lru_cache(maxsize=1)
def _history(path: Path, written_ns: int) -> History | None:  # noqa: ARG001 - what is kept is of that file
    """Return the history at *path*; ``None`` where there is none that can be read: all else is learned without it.

    It is read once, and its many small objects are left out of garbage collection, which would hold up each answer.
    """
    gc.disable()
    try:
        return read_history(path)
    except RequestError as error:
        _log.warning("%s", error)
        return None
    finally:
        gc.freeze()
        gc.enable()


def _written_ns(settings: LearningSettings) -> int:
    """Return when the file of history was written; 0 where there is none, or none is wanted."""
    try:
        return 0 if settings.history == "off" else Path(settings.history_file).stat().st_mtime_ns
    except OSError:
        return 0


class Learner(Watch):
    """Learns from the store.

    Args:
        configuration: Returns the newest.
        publish: Hears what was learned, whenever that may have changed.
    """

    def __init__(self, configuration: Callable[[], Configuration], publish: Callable[[Learned], None]) -> None:
        super().__init__("learner", "what earlier runs showed cannot be read")
        self._configuration = configuration
        self._publish = publish
        self._seen: object = None

    def _look(self) -> None:
        """Learn anew where a run has come, or a setting has changed, since the last look."""
        configuration = self._configuration()
        settings, now_s = configuration.learning, time.time()
        with closing(open_store(configuration.store.url)) as store:
            written_ns = _written_ns(settings)
            seen = settings, store.usage(count=1), int(now_s / RELEARN_S), written_ns
            if seen != self._seen:
                self._publish(learned_from(store, settings, now_s))
                self._seen = seen

    def _pause_s(self) -> float:
        return self._configuration().learning.refresh_s

    def _run(self) -> None:
        self.look()
        super()._run()
