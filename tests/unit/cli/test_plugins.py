"""`gpusage plugins`: what is wrong with a plugin is said, and the exit status tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint

from click.testing import CliRunner

from gpusage.cli import main
from gpusage.cli.admin import plugins_finding
from sites import announced


def test_a_plugin_that_is_set_aside_is_listed_with_the_reason(install: Callable[[EntryPoint], None]) -> None:
    install(announced(gpusage_api=2))
    result = CliRunner().invoke(main, ["plugins", "--json"])
    assert result.exit_code == 1
    rows = {row["name"]: row for row in json.loads(result.stdout)["plugins"]}
    assert rows["site"]["hooks"] == []
    assert "gpusage_api must be 1" in rows["site"]["trouble"]
    assert rows["gpusage.policies.stages"]["hooks"] == ["decide"]
    assert "none: set aside" in CliRunner().invoke(main, ["plugins"]).stdout


def test_other_commands_work_beside_a_broken_plugin(install: Callable[[EntryPoint], None]) -> None:
    install(announced(decide_fitt=lambda: None))
    result = CliRunner().invoke(main, ["gpus", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["gpus"]


def test_doctor_warns_of_what_this_process_and_gpusaged_found() -> None:
    found = plugins_finding({"here": "Plugin 'here' is bad."}, {"plugins": {"there": "Plugin 'there' is bad."}})
    assert (found.verdict, found.found) == ("warn", "Plugin 'here' is bad. Plugin 'there' is bad.")
    assert plugins_finding({}, {"v": 1}).verdict == "pass"
    assert plugins_finding({}, None).verdict == "pass"
