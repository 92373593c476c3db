"""The settings of a site; `gpusage.settings.configuration_file` reads them.

Invariants:

1. Every key has a default, so a site without a file has a valid configuration.
2. `origins` has the source of each set key.
3. Each workload manager of a plugin has a section, of the type that the plugin names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from gpusage_hooks.managers import ManagerSettings
from gpusage_hooks.types import GenerationRules, MoneyRules, NetworkRules, Range, Rules, SharingRules, SloRules

SiteMode = Literal["observe", "advise", "enforce"]
HistoryMode = Literal["off", "observe", "enforce"]
CaptureMode = Literal["opt-in", "all", "off"]
_Settings = TypeVar("_Settings", bound=ManagerSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """Settings of gpusaged: its socket and its view of the cluster.

    Attributes:
        socket: Path of gpusaged's socket.
        refresh_s: Seconds between two observations of the cluster.
        stale_after_s: An older observation of the cluster, in seconds, decides nothing.
        stuck_after_s: Seconds that a share waits before gpusaged checks whether it can start at all.
        allowed_users: Users of the socket; by default root and the users of the installed workload managers.
        metrics: Address for Prometheus, ``127.0.0.1:9723``; empty for none. It takes the extra [metrics].
    """

    socket: str = "/run/gpusage/gpusaged.sock"
    allowed_users: tuple[str, ...] = ("root",)
    refresh_s: Annotated[float, Range(low=0.1, high=3600)] = 15.0
    stale_after_s: float = 120.0
    stuck_after_s: Annotated[float, Range(low=1, high=86400)] = 60.0
    metrics: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Settings of the store of decisions.

    Attributes:
        url: ``sqlite:///PATH`` or ``postgresql://...``.
        keep_days: Age in days at which decisions are deleted; 0 is never.
    """

    url: str = "sqlite:////var/lib/gpusage/decisions.db"
    keep_days: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """Settings of learning from earlier runs (docs/learning.md).

    Attributes:
        enabled: Whether earlier runs count at all.
        days: Days for which a run counts.
        least_sampled_s: A run with fewer sampled seconds does not count.
        refresh_s: Seconds between two readings of new runs from the store.
        back_off: Whether shares are only advised where predictions for a user and a kind of model miss too often.
        history: Use of the history of jobs that name no model: ``observe`` records its estimates, ``enforce`` also
            acts on them where they have proved true. Such jobs then carry an annotation.
        history_file: File that `gpusage train --history` writes and gpusaged reads.
        capture: Jobs whose own runs show their models to the next job of the same script: ``opt-in`` for jobs with
            ``learn=on``, ``all`` for all jobs that name no model, or ``off`` (docs/capture.md).
    """

    enabled: bool = True
    days: Annotated[float, Range(low=1, high=3660)] = 90.0
    least_sampled_s: float = 60.0
    refresh_s: Annotated[float, Range(low=0.1, high=86400)] = 30.0
    back_off: bool = True
    history: HistoryMode = "off"
    history_file: str = "/var/lib/gpusage/history.json"
    capture: CaptureMode = "opt-in"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Settings of the catalogue of GPUs.

    Attributes:
        aliases: The site's own names of GPUs, each with one that `gpusage gpus` knows: ``{ big = "a100-80gb" }``.
        calibration: Files that `gpusage calibrate` wrote, one for each kind of GPU.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    calibration: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """All settings of a site.

    Attributes:
        mode: ``observe`` records only, ``advise`` tells the user, ``enforce`` rewrites.
        enforce_in: Partitions with mode ``enforce``; jobs that may run in others are observed. Empty for all.
        kill_switch: A file at this path turns every rewrite off at once.
        managers: Settings of each workload manager, by its name.
        origins: File that set each key, by ``section.key``; keys with their default are absent.
    """

    mode: SiteMode = "observe"
    enforce_in: tuple[str, ...] = ()
    kill_switch: str = "/etc/gpusage/off"
    sharing: SharingRules = SharingRules()
    generation: GenerationRules = GenerationRules()
    slo: SloRules = SloRules()
    daemon: DaemonSettings = DaemonSettings()
    store: StoreSettings = StoreSettings()
    learning: LearningSettings = LearningSettings()
    money: MoneyRules = MoneyRules()
    network: NetworkRules = NetworkRules()
    gpus: GpuSettings = GpuSettings()
    managers: Mapping[str, ManagerSettings] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """Return the policies' part of the settings."""
        return Rules(
            sharing=self.sharing, generation=self.generation, slo=self.slo, money=self.money, network=self.network
        )

    def mode_or(self, unset: SiteMode) -> SiteMode:
        """Return the site's mode, or *unset* where the file has none."""
        return self.mode if "mode" in self.origins else unset

    def of_manager(self, kind: type[_Settings]) -> _Settings:
        """Return the workload manager's settings of the type *kind*; its defaults without such a manager."""
        # A plugin knows its settings by their class; the name of its section is the manager's.
        return next((each for each in self.managers.values() if isinstance(each, kind)), kind())

    def answer_limit_s(self, manager: str) -> float:
        """Return the time limit of a question from *manager* without a deadline of its own, in seconds."""
        return self.managers.get(manager, ManagerSettings()).answer_limit_s

    def effective(self) -> Iterator[tuple[str, Any, str]]:
        """Yield each key, its value, and its source."""
        values: dict[str, object] = {"mode": self.mode, "enforce_in": self.enforce_in, "kill_switch": self.kill_switch}
        # Managers come last: their sections depend on the installed plugins.
        sections = {name: getattr(self, name) for name in SECTIONS}
        for name, section in {**sections, **self.managers}.items():
            # A plugin's settings may be of any class; only a dataclass has fields to list.
            if dataclasses.is_dataclass(section):
                values |= {f"{name}.{item.name}": getattr(section, item.name) for item in dataclasses.fields(section)}

        for key, value in values.items():
            yield key, value, self.origins.get(key, "default")


SECTIONS: Mapping[str, type[Any]] = {
    item.name: type(item.default)
    for item in dataclasses.fields(Configuration)
    if dataclasses.is_dataclass(item.default)
}
"""Core's own sections; the others are the workload managers'."""
