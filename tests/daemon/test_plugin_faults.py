"""What a real gpusaged does about plugins that break the contract: it names them, and every job goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

KEEP_ANSWER = {"v": "1", "code": "KEEP", "message": ""}


def install(daemon: Daemon, text: str) -> None:
    """Install a second plugin, ``broken``, whose module is *text*."""
    folder = daemon.folder / "plugins"
    metadata = folder / "broken_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gpusage]\nbroken = broken_plugin\n")
    (folder / "broken_plugin.py").write_text(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import absent", "ModuleNotFoundError: No module named 'absent'"),
        ("1 / 0", "ZeroDivisionError: division by zero (broken_plugin.py:1)"),
        ("gpusage_api = 3", "gpusage_api must be 1, the API of this gpusage; got 3"),
        (
            "from gpusage_hooks import hookimpl\n\n@hookimpl\ndef decide_sharing(case, draft): ...\n",
            "'decide_sharing' must implement a hook; got no hook 'decide_sharing'",
        ),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_set_aside(idle: Daemon, text: str, sentence: str) -> None:
    """The daemon starts, says so once in its log and always in its status, and asks the other plugins."""
    install(idle, text)
    idle.start()
    assert idle.ask()["code"] == "REWRITE"
    trouble = idle.status()["plugins"]["broken"]
    assert trouble.startswith("Plugin 'broken' of broken-plugin 1.0 must ")
    assert sentence in trouble
    assert idle.log().count(f"gpusage: warning: {trouble}\n") == 1


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        ("fault=1", "hook 'predict_needs', must raise nothing but a GpuUsageError; it raised ZeroDivisionError"),
        ("few=1", "hook 'predict_needs', must answer as the contract says: the answer must have one entry per GPU"),
    ],
)
def test_a_plugin_that_breaks_the_contract_is_named_and_costs_no_job(daemon: Daemon, card: str, sentence: str) -> None:
    answer = daemon.ask(daemon.question(daemon.card(card)))
    assert answer.pop("mark").startswith("gpusage ")
    assert answer == KEEP_ANSWER
    assert f"Plugin 'site', {sentence}" in daemon.status()["plugins"]["site"]
    assert f"Plugin 'site', {sentence}" in daemon.log()
    assert daemon.ask()["code"] == "REWRITE"


def test_a_policy_that_answers_with_a_dict_is_named_and_costs_no_job(idle: Daemon) -> None:
    idle.behave(dict=True)
    idle.start()
    answer = idle.ask()
    assert answer.pop("mark").startswith("gpusage ")
    assert answer == KEEP_ANSWER
    assert "Plugin 'site', hook 'decide', must answer as the contract says" in idle.log()
    assert "got dict {'code': 'KEEP'}" in idle.records()[0].decision.reasons[0]
