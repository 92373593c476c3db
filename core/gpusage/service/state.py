"""What decisions rest on: the configuration, the kill switch and the clusters, kept fresh in the background.

Invariants:

1. Whoever answers reads one `Snapshot` and waits for nobody: files and managers are asked in threads of their own.
2. Ages are measured on the monotonic clock; setting the clock back changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from gpusage.advisor import Advisor
from gpusage.configuration import Configuration
from gpusage.configuration_file import Managers
from gpusage.error_text import sentence
from gpusage.learning.learned import NOTHING_LEARNED, Learned
from gpusage.service.configuration_watch import ConfigurationWatch
from gpusage.service.kill_switch import kill_reason
from gpusage.service.ledger import Ledger
from gpusage.service.precedents import Precedents
from gpusage.service.rivals import Rivals
from gpusage.service.warm_up import warm
from gpusage.verdict import Premises
from gpusage_hooks.types import Cluster, Neighbour

TICK_S = 0.5
SHORTEST_REFRESH_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A cluster, and when looking at it began and ended on the monotonic clock."""

    cluster: Cluster
    begun_at_s: float
    seen_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one decision rests on.

    Attributes:
        clusters: By manager, those seen recently enough.
        sightings: Likewise, every one as it was seen last.
        troubles: By manager, why its cluster is not known or no longer fresh.
        killed: Why nothing may be rewritten, where the kill switch is on.
        trusted_uids: Who may ask.
        precedents: Rulings that follow from this snapshot; they die with it.
        ledger: What was given of the clusters since they were seen; all snapshots have the same.
        rivals: The jobs of late; likewise.
    """

    configuration: Configuration
    advisor: Advisor
    trusted_uids: frozenset[int]
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    sightings: Mapping[str, Sighting] = field(default_factory=dict, compare=False)
    troubles: Mapping[str, str] = field(default_factory=dict)
    killed: str | None = None
    precedents: Precedents[Any] = field(default_factory=Precedents, compare=False)
    ledger: Ledger = field(default_factory=Ledger, compare=False)
    rivals: Rivals = field(default_factory=Rivals, compare=False)

    @property
    def premises(self) -> Premises:
        """Everything except the cluster that a verdict rests on."""
        return Premises(
            advisor=self.advisor,
            mode=self.configuration.mode,
            enforce_in=self.configuration.enforce_in,
            killed=self.killed,
            history=self.configuration.learning.history,
        )


class State:
    """Keeps the newest snapshot.

    Args:
        configuration: What the daemon was started with.
        advisor: Its rules and the managers' settings are replaced by the configuration's.
        managers: Whom to ask what they have.
        path: The configuration's file, ``None`` for the usual one.
    """

    def __init__(
        self,
        configuration: Configuration,
        advisor: Advisor,
        managers: Managers,
        path: Path | None = None,
    ) -> None:
        self._watched = ConfigurationWatch(configuration, managers, path)
        self._advisor = advisor
        self._managers = managers
        self._sightings: dict[str, Sighting] = {}
        self._ledger = Ledger()
        self._rivals = Rivals()
        self._errors: dict[str, str] = {}
        self._killed: str | None = None
        self._learned = NOTHING_LEARNED
        self._neighbours: dict[str, tuple[Neighbour, ...]] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._snapshot = self._made()

    @property
    def snapshot(self) -> Snapshot:
        """Return what is known now; never waits."""
        return self._snapshot

    def start(self) -> None:
        """Look at files and managers from now on."""
        self._watched.start()
        self.look()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        for manager in self._managers:
            threading.Thread(target=self._observe, args=(manager,), name=manager, daemon=True).start()

    def stop(self) -> None:
        """End the threads, soon."""
        self._stop.set()

    def look(self) -> None:
        """Read again what has changed on disk, and publish a new snapshot where that changes anything."""
        self._watched.look()
        self._killed = kill_reason(self._watched.configuration.kill_switch)
        self._publish()

    def take_learned(self, learned: Learned) -> None:
        """Decide by *learned* from now on."""
        self._learned = learned
        self._publish()

    def take_neighbours(self, manager: str, neighbours: tuple[Neighbour, ...]) -> None:
        """Decide from now on by the *neighbours* that a share of *manager*'s GPUs may get."""
        if neighbours != self._neighbours.get(manager, ()):
            self._neighbours[manager] = neighbours
            self._publish()

    def status(self) -> dict[str, Any]:
        """Return what decisions rest on now, for people: nothing that no decision knows of yet."""
        snapshot, now_s = self._snapshot, time.monotonic()
        return {
            "mode": snapshot.configuration.mode,
            "enforce_in": list(snapshot.configuration.enforce_in),
            "kill_switch": {"path": snapshot.configuration.kill_switch, "on": snapshot.killed is not None},
            "configuration": {"path": str(self._watched.path), "error": self._watched.trouble},
            "clusters": {
                manager: {"age_s": round(now_s - sighting.seen_at_s, 1), **msgspec.to_builtins(sighting.cluster)}
                for manager, sighting in snapshot.sightings.items()
            },
            "troubles": dict(snapshot.troubles),
        }

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            _guarded(self.look)

    def _observe(self, manager: str) -> None:
        while True:
            _guarded(lambda: self._ask(manager))
            if self._stop.wait(max(SHORTEST_REFRESH_S, self._watched.configuration.daemon.refresh_s)):
                return

    def _ask(self, manager: str) -> None:
        """Ask *manager* for its cluster; a failure is remembered, not raised."""
        begun_s = time.monotonic()
        try:
            advisor = self._snapshot.advisor
            cluster = advisor.hooks.observe_cluster(manager, advisor.context(manager))
        except Exception as error:  # noqa: BLE001 - an adapter may fail in any way
            self._note(manager, sentence(error))
        else:
            if cluster is not None and manager not in self._sightings:
                warm(self._advisor, cluster)
            if cluster is not None:
                self._sightings[manager] = Sighting(cluster=cluster, begun_at_s=begun_s, seen_at_s=time.monotonic())
            self._errors.pop(manager, None)
        self._publish(refreshed=True)
        if manager in self._sightings:
            self._ledger.forget(manager, self._sightings[manager].begun_at_s)

    def _note(self, manager: str, trouble: str) -> None:
        """Remember and, the first time, log why *manager* did not answer."""
        if self._errors.get(manager) != trouble:
            _log.warning("%s: %s", manager, trouble)
        self._errors[manager] = trouble

    def _publish(self, *, refreshed: bool = False) -> None:
        with self._lock:
            snapshot = self._made()
            if refreshed or snapshot != self._snapshot:
                self._snapshot = snapshot

    def _made(self) -> Snapshot:
        configuration = self._watched.configuration
        oldest_s = time.monotonic() - configuration.daemon.stale_after_s
        sightings = dict(self._sightings)
        fresh = {
            manager: replace(
                sighting.cluster, neighbours=(*sighting.cluster.neighbours, *self._neighbours.get(manager, ()))
            )
            for manager, sighting in sightings.items()
            if sighting.seen_at_s >= oldest_s
        }
        return Snapshot(
            configuration=configuration,
            advisor=replace(self._advisor.configured(configuration), learned=self._learned),
            trusted_uids=self._watched.trusted_uids,
            clusters=fresh,
            sightings=sightings,
            troubles={
                manager: self._errors.get(manager) or f"{manager} has not been seen for too long"
                for manager in (*sightings, *self._errors)
                if manager not in fresh
            },
            killed=self._killed,
            ledger=self._ledger,
            rivals=self._rivals,
        )


def _guarded(action: Callable[[], None]) -> None:
    """Run *action* in a thread that must live on."""
    try:
        action()
    except Exception:  # noqa: BLE001 - whatever it was, the next look may succeed
        _log.warning("a background look failed", exc_info=True)
