"""The facade: it asks every hook, names who answered wrongly, and keeps others' faults from being ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from gpusage.plugins.hooks import Hooks, Implementation
from gpusage.plugins.loading import make_hooks
from gpusage_hooks import samples
from gpusage_hooks.errors import PluginError, RequestError
from gpusage_hooks.managers import Manager, ManagerSettings
from gpusage_hooks.types import Gpu, ObservedFigures, Workload
from sites import announced

GPUS = samples.gpus()


def test_arguments_arrive_by_their_names_however_they_are_passed() -> None:
    passed: list[tuple[object, object]] = []
    reader = Implementation(
        plugin="site",
        hook="read_model",
        function=lambda shape, source: passed.append((source, shape)),
        arguments=("shape", "source"),
        is_ours=True,
    )
    hooks = Hooks([], {"read_model": [reader]})
    hooks.read_model("a", {})
    hooks.read_model("a", shape={})
    hooks.read_model(shape={}, source="a")
    assert passed == [("a", {})] * 3


def predicting(hooks: Hooks) -> object:
    return hooks.predict_needs(samples.graph(), Workload(), GPUS, [ObservedFigures()] * len(GPUS))


def one_entry(gpus: Sequence[Gpu]) -> object:
    return [samples.need(gpus[0])]


def failing(gpus: Sequence[Gpu]) -> object:
    return {"a100": 1.0}[gpus[0].name]


def leaving() -> None:
    raise SystemExit(1)


def cancelled() -> None:
    raise asyncio.CancelledError


class WordlessError(Exception):
    """Cannot even be told of."""

    def __str__(self) -> str:
        raise TypeError


def wordless() -> None:
    raise WordlessError


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (one_entry, "answer as the contract says: the answer must have one entry per GPU; got 1 for 3"),
        (failing, "raise nothing but a GpuUsageError; it raised KeyError: 'sample-old' (test_hooks.py:"),
        (lambda: {"v100": 1.0}, "predict_needs must be Sequence or None; got dict"),
        (lambda: [{}] * 3, "predict_needs[0] must be of type GpuNeed; got dict {}"),
        (lambda: [samples.need(gpu, memory_gib=-1.0) for gpu in GPUS], "memory_bytes must be ordered low, value, high"),
        (leaving, "raise nothing but a GpuUsageError; it raised SystemExit: 1"),
        (cancelled, "raise nothing but a GpuUsageError; it raised CancelledError (test_hooks.py:"),
        (wordless, "raise nothing but a GpuUsageError; it raised WordlessError (test_hooks.py:"),
    ],
)
def test_who_breaks_the_contract_is_named(function: Callable[..., Any], sentence: str) -> None:
    hooks = make_hooks([announced(predict_needs=function)])
    with pytest.raises(PluginError) as caught:
        predicting(hooks)
    message = str(caught.value)
    assert sentence in message
    assert message.startswith("Plugin 'site', hook 'predict_needs', must ")
    assert (caught.value.plugin, caught.value.hook) == ("site", "predict_needs")
    assert hooks.troubles() == {"site": message}


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_is_a_plugins_fault_but_in_the_main_thread() -> None:
    """It ended gpusaged's judge, and no job was ever judged again."""
    hooks = make_hooks([announced(predict_needs=interrupted)])
    with pytest.raises(KeyboardInterrupt):
        predicting(hooks)
    faults = []

    def elsewhere() -> None:
        with pytest.raises(PluginError) as caught:
            predicting(hooks)
        faults.append(str(caught.value))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "it raised KeyboardInterrupt" in faults[0]


@dataclass(frozen=True, kw_only=True)
class BrokenSettings(ManagerSettings):
    """Its limit is no number."""

    @property
    def answer_limit_s(self) -> float:
        """Fail."""
        raise SystemExit


def test_a_manager_whose_settings_fail_is_left_out() -> None:
    """It ended gpusaged at its start."""
    toy = Manager(name="toy", title="Toy", settings=BrokenSettings)
    hooks = make_hooks([announced(describe_manager=lambda: toy)])
    assert hooks.describe_manager() == []
    assert "checking its answer raised SystemExit" in hooks.troubles()["site"]


def test_what_a_plugin_prints_is_not_the_commands_output(capsys: pytest.CaptureFixture[str]) -> None:
    hooks = make_hooks([announced(describe_gpus=lambda: print("noise"))])
    hooks.describe_gpus()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "noise\n")


def test_a_policy_that_answers_with_a_dict_is_named() -> None:
    hooks = make_hooks([announced(decide=lambda policy_input: {"code": "KEEP"})])
    with pytest.raises(PluginError, match=r"Plugin 'site', hook 'decide', must .* got dict"):
        hooks.decide("sharing", samples.policy_input(), samples.draft(samples.policy_input()))


def test_an_error_that_the_contract_knows_goes_through() -> None:
    def observe_cluster() -> None:
        raise RequestError("pbs must answer; it does not.")

    with pytest.raises(RequestError, match="pbs must answer"):
        make_hooks([announced(observe_cluster=observe_cluster)]).observe_cluster("pbs", samples.context())


def test_a_sites_own_plugin_is_asked_first_and_may_leave_it_to_others() -> None:
    requests: list[str] = []
    points = [
        announced("first", predict_needs=lambda: requests.append("first")),
        announced("second", predict_needs=lambda: requests.append("second")),
    ]
    hooks = make_hooks(points)
    assert predicting(hooks) == predicting(make_hooks())
    assert requests == ["second", "first"]
    assert not hooks.are_ours("predict_needs")
    assert hooks.are_ours("predict_colocation")


def test_where_all_answers_count_a_broken_one_is_left_out_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    points = [
        announced("sound", describe_gpus=samples.gpus),
        announced("broken", describe_gpus=lambda: [{}["absent"]]),
    ]
    hooks = make_hooks(points)
    for _ in range(2):
        assert {gpu.name for gpu in GPUS} < {gpu.name for gpu in hooks.describe_gpus()}
    assert capsys.readouterr().err.count("gpusage: warning: Plugin 'broken', hook 'describe_gpus', must raise") == 1
    assert [*hooks.troubles()] == ["broken"]


def test_answers_of_all_plugins_come_as_one_list() -> None:
    command, other = (type("Command", (), {"name": name})() for name in ("quota", "usage"))
    points = [announced("one", add_commands=lambda: [command]), announced("other", add_commands=lambda: [other])]
    assert {command, other} <= set(make_hooks(points).add_commands())


def test_one_plugins_commands_are_asked_alone() -> None:
    command = type("Command", (), {"name": "quota"})()
    hooks = make_hooks([announced(add_commands=lambda: [command])])
    assert hooks.commands_of("site") == [command]
    assert hooks.commands_of("nobody") == []
