"""The basis of decisions: the configuration, the kill switch and the clusters, kept fresh in the background.

Invariants:

1. An answer rests on one `Snapshot` and waits for nothing: files and managers are read in threads of their own.
2. Ages are measured on the monotonic clock; setting the clock back changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from gpusage.decisions.advisor import Advisor
from gpusage.experience.learned import NOTHING_LEARNED, Learned, with_failures
from gpusage.plugins.hooks import sentence
from gpusage.predictors.sharing.colocation import slowdown_with_partners
from gpusage.service.configuration_watch import ConfigurationWatcher, kill_reason
from gpusage.service.decision_cache import DecisionCache
from gpusage.service.reservations import PendingReservations, RecentJobs
from gpusage.settings.configuration import Configuration
from gpusage.settings.configuration_file import Managers
from gpusage_hooks import samples
from gpusage_hooks.types import (
    OF_USER,
    Cluster,
    DecisionRequest,
    Interval,
    JobIdentity,
    Neighbour,
    Workload,
)

TICK_S = 0.5
SHORTEST_REFRESH_S = 0.1
RECENT_FAILURE_S = 300.0
"""How long a failure counts here: by then the learner has read it from the store."""
FAILURES_LIMIT, FAILURES_PER_USER_LIMIT = 1000, 50
"""One user's flood of failures evicts nobody else's."""

_WARM_UP_WORKLOADS = (Workload(), Workload(mode="infer", optimizer="none", precision="fp16"))
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObservation:
    """A cluster, and when its observation began and ended on the monotonic clock."""

    cluster: Cluster
    begun_at_s: float
    seen_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one decision rests on.

    Attributes:
        clusters: By manager, those seen recently enough.
        observations: By manager, the last observation of its cluster.
        troubles: By manager, why its cluster is not known or no longer fresh.
        kill_reason: Why nothing may be rewritten, where the kill switch is on.
        trusted_uids: Who may ask.
        decision_cache: Responses that follow from this snapshot; they die with it.
        reservations: Shares that were given since the clusters were observed; all snapshots have the same.
        recent_jobs: Recent jobs; all snapshots have the same.
    """

    configuration: Configuration
    advisor: Advisor
    trusted_uids: frozenset[int]
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    observations: Mapping[str, ClusterObservation] = field(default_factory=dict, compare=False)
    troubles: Mapping[str, str] = field(default_factory=dict)
    kill_reason: str | None = None
    decision_cache: DecisionCache[Any] = field(default_factory=DecisionCache, compare=False)
    reservations: PendingReservations = field(default_factory=PendingReservations, compare=False)
    recent_jobs: RecentJobs = field(default_factory=RecentJobs, compare=False)

    @property
    def site_advisor(self) -> Advisor:
        """The advisor in the site's mode: everything except the cluster that an outcome rests on."""
        return replace(
            self.advisor,
            mode=self.configuration.mode,
            enforce_in=self.configuration.enforce_in,
            kill_reason=self.kill_reason,
            history=self.configuration.learning.history,
        )


class State:
    """Keeps the newest snapshot.

    Args:
        configuration: At the daemon's start.
        advisor: Its rules and the managers' settings are replaced by the configuration's.
        managers: Their clusters are observed.
        path: The configuration's file, ``None`` for the usual one.

    Attributes:
        snapshot: The newest; replaced as a whole, so that whoever reads it never waits.
    """

    def __init__(
        self,
        configuration: Configuration,
        advisor: Advisor,
        managers: Managers,
        path: Path | None = None,
    ) -> None:
        self._watcher = ConfigurationWatcher(configuration, managers, path)
        self._advisor = advisor
        self._managers = managers
        self._observations: dict[str, ClusterObservation] = {}
        self._reservations = PendingReservations()
        self._recent_jobs = RecentJobs()
        self._errors: dict[str, str] = {}
        self._site = configuration, advisor.configured(configuration)
        self._learned = NOTHING_LEARNED
        self._recent_failures: dict[JobIdentity, float] = {}
        self._neighbours: dict[str, tuple[Neighbour, ...]] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.snapshot = self._make_snapshot()

    def start(self) -> None:
        """Start to read files and observe managers."""
        self._watcher.start()
        self.refresh()
        threading.Thread(target=self._watch_files, name="watch", daemon=True).start()
        for manager in self._managers:
            threading.Thread(target=self._observe_repeatedly, args=(manager,), name=manager, daemon=True).start()

    def stop(self) -> None:
        """End the threads, soon."""
        self._stop.set()

    def refresh(self) -> None:
        """Read changed files again, and publish a new snapshot where that changes anything."""
        self._watcher.reload_if_changed()
        # Files of calibrations may hang: nobody else waits then, and the last settings stay in force.
        self._site = self._watcher.configuration, self._advisor.configured(self._watcher.configuration)
        self._publish()

    def set_learned(self, learned: Learned) -> None:
        """Decide by *learned* from now on; recent failures may not be in it yet."""
        self._learned = learned
        self._publish()

    def add_failure(self, identity: JobIdentity) -> None:
        """From now on, give a whole GPU to jobs like that of *identity*, which failed on its share just now."""
        now_s = time.monotonic()
        with self._lock:
            # The oldest go first: of this user's, then of all.
            lately = {each: at_s for each, at_s in self._recent_failures.items() if now_s - at_s < RECENT_FAILURE_S}
            is_known = lately.pop(identity, None) is not None
            own = [each for each in lately if each.user == identity.user]
            for each in own[: max(len(own) + 1 - FAILURES_PER_USER_LIMIT, 0)]:
                del lately[each]
            for each in [*lately][: max(len(lately) + 1 - FAILURES_LIMIT, 0)]:
                del lately[each]
            self._recent_failures = {**lately, identity: now_s}

        if not is_known:
            self._publish()

    def set_neighbours(self, manager: str, neighbours: tuple[Neighbour, ...]) -> None:
        """Decide from now on by the *neighbours* that a share of *manager*'s GPUs may get."""
        if neighbours != self._neighbours.get(manager, ()):
            self._neighbours[manager] = neighbours
            self._publish()

    def status(self) -> dict[str, Any]:
        """Return the basis of decisions for people: nothing that no decision knows of yet."""
        snapshot, now_s = self.snapshot, time.monotonic()
        return {
            "mode": snapshot.configuration.mode,
            "enforce_in": list(snapshot.configuration.enforce_in),
            "kill_switch": {"path": snapshot.configuration.kill_switch, "on": snapshot.kill_reason is not None},
            "configuration": {
                "path": str(self._watcher.path),
                "error": self._watcher.error,
            },
            "clusters": {
                manager: {
                    "age_s": round(now_s - observation.seen_at_s, 1),
                    **msgspec.to_builtins(observation.cluster),
                    "unshared": _without_users(observation.cluster.unshared),
                }
                for manager, observation in snapshot.observations.items()
            },
            "troubles": dict(snapshot.troubles),
        }

    def _watch_files(self) -> None:
        while not self._stop.wait(TICK_S):
            _guarded(self.refresh)

    def _observe_repeatedly(self, manager: str) -> None:
        while True:
            _guarded(lambda: self._observe(manager))
            if self._stop.wait(max(SHORTEST_REFRESH_S, self._watcher.configuration.daemon.refresh_s)):
                return

    def _observe(self, manager: str) -> None:
        """Observe *manager*'s cluster; a failure becomes part of the snapshot, and is not raised."""
        begun_s = time.monotonic()
        try:
            advisor = self.snapshot.advisor
            cluster = advisor.hooks.observe_cluster(manager, advisor.context(manager))
        except Exception as error:  # an adapter may fail in any way
            reason = sentence(error)
            if self._errors.get(manager) != reason:
                _log.warning("%s: %s", manager, reason)
            self._errors[manager] = reason
        else:
            # Before the first snapshot with a cluster: until then every job stays as it is, quickly.
            if cluster is not None and manager not in self._observations:
                warm_up_predictors(self._advisor, cluster)
            if cluster is not None:
                self._observations[manager] = ClusterObservation(
                    cluster=cluster, begun_at_s=begun_s, seen_at_s=time.monotonic()
                )
            self._errors.pop(manager, None)
        self._publish(refreshed=True)

        # The observation shows the shares that were given well before it began.
        if manager in self._observations:
            self._reservations.forget(manager, self._observations[manager].begun_at_s)

    def _publish(self, *, refreshed: bool = False) -> None:
        with self._lock:
            snapshot = self._make_snapshot()
            # A new snapshot has an empty cache of decisions, so an equal one is not published.
            if refreshed or snapshot != self.snapshot:
                self.snapshot = snapshot

    def _make_snapshot(self) -> Snapshot:
        configuration, advisor = self._site

        # A cluster that was seen too long ago decides nothing.
        oldest_s = time.monotonic() - configuration.daemon.stale_after_s
        observations = dict(self._observations)
        fresh = {
            manager: replace(
                observation.cluster,
                neighbours=(*observation.cluster.neighbours, *self._neighbours.get(manager, ())),
                smallest_shares=self._learned.smallest_shares,
            )
            for manager, observation in observations.items()
            if observation.seen_at_s >= oldest_s
        }

        # Failures of the last minutes may not be in the store yet when the learner reads it.
        oldest_failure_s = time.monotonic() - RECENT_FAILURE_S
        lately = [each for each, at_s in self._recent_failures.items() if at_s > oldest_failure_s]
        failures = with_failures(self._learned.failures, lately)
        learned = replace(self._learned, failures=failures)

        return Snapshot(
            configuration=configuration,
            advisor=replace(advisor, learned=learned),
            trusted_uids=self._watcher.trusted_uids,
            clusters=fresh,
            observations=observations,
            troubles={
                manager: self._errors.get(manager) or f"gpusaged has not observed {manager} for too long"
                for manager in (*observations, *self._errors)
                if manager not in fresh
            },
            kill_reason=kill_reason(configuration.kill_switch),
            reservations=self._reservations,
            recent_jobs=self._recent_jobs,
        )


def _guarded(action: Callable[[], None]) -> None:
    """Run *action* in a thread that must live on."""
    try:
        action()
    except Exception:  # whatever it was, the next run may succeed
        _log.warning("a background task failed", exc_info=True)


def warm_up_predictors(advisor: Advisor, cluster: Cluster) -> None:
    """Do the slow part of the first prediction in advance: import modules, read tables, fill caches.

    A small model is predicted and priced on every GPU of *cluster*; a failure is for the first job to report.
    """
    try:
        submission = DecisionRequest(manager=cluster.manager, fields={})
        advisor.hooks.parse_submission(submission, advisor.context(cluster.manager))
        gpus = [advisor.catalogue.find(pool.gpu) for pool in cluster.pools if pool.gpu is not None]
        for workload in _WARM_UP_WORKLOADS:
            # Its convolutions, sum, pooling and product pass each kind of kernel that the predictors know.
            advisor.predict(samples.graph(), workload, gpus)
            advisor.price(samples.graph(), workload, gpus, advisor.rules.sharing.sizes)

        # Policies are imported by the first decision only.
        import_module("gpusage.policies.stages")
        slowdown_with_partners(Interval(value=1.1, low=1.0, high=1.2), partners=1)
    except Exception as error:  # predictors are plugins
        _log.warning("warming up failed: %s", sentence(error))


def _without_users(unshared: Mapping[str, str]) -> dict[str, str]:
    """Return *unshared* for everybody: with how many users have reasons of their own, and not who has which."""
    shown = {scope: why for scope, why in unshared.items() if OF_USER not in scope}
    count = len(unshared) - len(shown)
    return shown | ({OF_USER.strip(): f"{count} users have limits of their own"} if count else {})
