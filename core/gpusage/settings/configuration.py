"""Everything that a site can set; `gpusage.settings.configuration_file` reads it.

Invariants:

1. Every key has a default, so that no file is a valid configuration.
2. `origins` shows for each key where its value came from.
3. Each workload manager that a plugin describes has a section, of the type that the plugin names.
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
    """How gpusaged listens and watches the cluster.

    Attributes:
        socket: Where gpusaged listens.
        refresh_s: How often the cluster is looked at, in seconds.
        stale_after_s: A description of the cluster that is older, in seconds, decides nothing.
        stuck_after_s: How long a share may wait, in seconds, before it is seen whether it can start at all.
        allowed_users: Who may ask; by default root, and those who ask for the installed workload managers.
        metrics: Where Prometheus may ask, ``127.0.0.1:9723``; empty for nowhere. It takes the extra [metrics].
    """

    socket: str = "/run/gpusage/gpusaged.sock"
    allowed_users: tuple[str, ...] = ("root",)
    refresh_s: Annotated[float, Range(low=0.1, high=3600)] = 15.0
    stale_after_s: float = 120.0
    stuck_after_s: Annotated[float, Range(low=1, high=86400)] = 60.0
    metrics: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Where decisions are kept, and for how long.

    Attributes:
        url: ``sqlite:///PATH`` or ``postgresql://...``.
        keep_days: For how many days; 0 is for good.
    """

    url: str = "sqlite:////var/lib/gpusage/decisions.db"
    keep_days: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSettings:
    """What gpusaged learns from earlier runs (docs/learning.md).

    Attributes:
        enabled: Whether earlier runs count at all.
        days: How many days a run counts.
        least_sampled_s: A run that was sampled for fewer seconds does not count.
        refresh_s: How often new runs are read from the store, in seconds.
        back_off: Whether shares are only advised where predictions for a user and a kind of model miss too often.
        history: What is done for jobs that name no model: ``observe`` records what their history shows, ``enforce``
            also acts on it where it has earned that. Such jobs then carry an annotation.
        history_file: Where `gpusage train --history` writes, and gpusaged reads.
        capture: Whose own runs show their models to the next job of the same script: ``opt-in`` those that say
            ``learn=on``, ``all`` those that name no model, or ``off`` (docs/capture.md).
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
class Configuration:
    """Everything that a site can set.

    Attributes:
        mode: ``observe`` records only, ``advise`` tells the user, ``enforce`` rewrites.
        enforce_in: The partitions in which ``enforce`` holds; jobs that may run in others are observed. Empty for all.
        kill_switch: A file at this path turns every rewrite off at once.
        managers: The settings of each workload manager, by its name.
        origins: For each key, as ``section.key``, the file that set it; defaults are not listed.
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
    managers: Mapping[str, ManagerSettings] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """Return what policies act on."""
        return Rules(
            sharing=self.sharing, generation=self.generation, slo=self.slo, money=self.money, network=self.network
        )

    def mode_or(self, unset: SiteMode) -> SiteMode:
        """Return the mode that the site has set, or *unset* where it has set none."""
        return self.mode if "mode" in self.origins else unset

    def of_manager(self, kind: type[_Settings]) -> _Settings:
        """Return the settings of the workload manager that has them as a *kind*; its defaults where there is none."""
        return next((each for each in self.managers.values() if isinstance(each, kind)), kind())

    def answer_limit_s(self, manager: str) -> float:
        """Return how long a question of *manager* may take that does not say until when, in seconds."""
        return self.managers.get(manager, ManagerSettings()).answer_limit_s

    def effective(self) -> Iterator[tuple[str, Any, str]]:
        """Yield each key, its value, and where it came from."""
        settings: dict[str, Any] = {
            "mode": self.mode,
            "enforce_in": self.enforce_in,
            "kill_switch": self.kill_switch,
        }

        # A manager's plugin may have settings that are no dataclass; it shows none of them.
        sections = {name: getattr(self, name) for name in SECTIONS} | {**self.managers}
        for name, section in sections.items():
            for item in dataclasses.fields(section) if dataclasses.is_dataclass(section) else ():
                settings[f"{name}.{item.name}"] = getattr(section, item.name)

        for key, value in settings.items():
            yield key, value, self.origins.get(key, "default")


SECTIONS: Mapping[str, type[Any]] = {
    item.name: type(item.default)
    for item in dataclasses.fields(Configuration)
    if dataclasses.is_dataclass(item.default)
}
"""Core's own sections; the others are the workload managers'."""
