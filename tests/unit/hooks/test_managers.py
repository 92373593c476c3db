"""What a plugin may say of a workload manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.settings.configuration import Configuration
from gpusage_hooks.managers import TAKEN, Context, Manager, ManagerSettings, manager_fault
from gpusage_hooks.types import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound(ManagerSettings):
    """One field of each type."""

    on: bool = True
    count: int = 3
    limit_ms: Annotated[float, Range(low=1, high=9)] = 5.0
    server: str = ""
    queues: tuple[str, ...] = ()
    speed: Literal["slow", "fast"] = "slow"


@dataclass
class Thawed(ManagerSettings):
    """Can be changed."""


@dataclass(frozen=True)
class Bare(ManagerSettings):
    """A field without a default."""

    server: str


@dataclass(frozen=True)
class Odd(ManagerSettings):
    """A field of a type that no section has."""

    server: dict[str, str] | None = None


@dataclass(frozen=True)
class Outside(ManagerSettings):
    """A default that a site could not write."""

    limit_ms: Annotated[float, Range(low=1, high=9)] = 10.0


@dataclass(frozen=True)
class Hasty(ManagerSettings):
    """No time at all."""

    @property
    def answer_limit_s(self) -> float:
        """Nothing."""
        return 0.0


class Plain(ManagerSettings):
    """No dataclass."""


@pytest.mark.parametrize("settings", [ManagerSettings, Sound])
def test_a_sound_description_has_no_fault(settings: type[ManagerSettings]) -> None:
    assert manager_fault(Manager(name="pbs-pro_2", title="PBS", settings=settings)) is None


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (Plain, "its settings must be a frozen dataclass; got Plain"),
        (Thawed, "its settings must be a frozen dataclass; got Thawed"),
        (Bare, "setting 'server' must have a default; got none"),
        (Odd, "setting 'server' must be one of bool, int, float, str, tuple[str, ...] or a Literal; got"),
        (Outside, "setting 'limit_ms' must have a default from 1 to 9; got 10.0"),
        (Hasty, "answer_limit_s of its settings must be above 0; got 0.0"),
    ],
)
def test_a_fault_of_its_settings_is_one_clause(settings: type[ManagerSettings], fault: str) -> None:
    assert str(manager_fault(Manager(name="pbs", title="PBS", settings=settings))).startswith(fault)


@pytest.mark.parametrize("name", ["PBS", "", "a b", "daemon", "x" * 33])
def test_a_name_must_be_plain_and_free(name: str) -> None:
    assert str(manager_fault(Manager(name=name, title="PBS"))).startswith("its name must")


def test_the_taken_names_are_the_keys_of_a_configuration_without_managers() -> None:
    assert {key.partition(".")[0] for key, _, _ in Configuration().effective()} == {*TAKEN}


def test_a_context_gives_settings_of_the_type_that_is_asked_for() -> None:
    """A hook that is asked by hand, or for another manager, has its defaults."""
    context = Context(settings=Sound(count=4), catalogue=builtin_catalogue())
    assert context.settings_of(Sound).count == 4
    assert Context(settings=ManagerSettings(), catalogue=builtin_catalogue()).settings_of(Sound) == Sound()
