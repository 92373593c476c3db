"""What the doctors of all workload managers say of gpusage itself."""

from __future__ import annotations

from pathlib import Path

from gpusage.cli import doctor
from gpusage.cli.doctor import OwnEvidence
from gpusage.configuration import Configuration

OWN = OwnEvidence(configuration=Configuration(), status={"v": 1})


def test_broken_plugins_are_told_as_this_process_and_gpusaged_found_them() -> None:
    status = {"plugins": {"there": "Plugin 'there' is bad."}}
    here = {"here": "Plugin 'here' is bad."}
    finding = doctor.plugins(OwnEvidence(configuration=Configuration(), status=status, plugin_troubles=here))
    assert (finding.verdict, finding.found) == ("warn", "Plugin 'here' is bad. Plugin 'there' is bad.")
    assert doctor.plugins(OWN).verdict == "pass"
    assert doctor.plugins(OwnEvidence(configuration=Configuration())).verdict == "pass"


def test_decisions_that_were_lost_are_told_with_the_store() -> None:
    status = {"records": {"lost": 3, "error": "disk full"}}
    finding = doctor.store(OwnEvidence(configuration=Configuration(), status=status))
    assert (finding.verdict, finding.found) == ("warn", "3 decisions could not be kept: disk full")
    assert finding.todo == f"check {Configuration().store.url}"
    assert doctor.store(OWN).verdict == "pass"


def test_the_daemon_counts_as_troubled_by_its_configuration_or_the_manager_that_is_asked_about() -> None:
    troubles = {"troubles": {"pbs": "pbs does not answer"}}
    assert doctor.daemon_trouble(troubles, "pbs") == "pbs does not answer"
    assert doctor.daemon_trouble(troubles, "lsf") == ""
    assert doctor.daemon_trouble({**troubles, "configuration": {"error": "broken"}}, "pbs") == "broken"


def test_where_no_daemon_answers_the_settings_of_the_file_stand(tmp_path: Path) -> None:
    switch = tmp_path / "off"
    switch.touch()
    configuration = Configuration(kill_switch=str(switch))
    own = doctor.gather_own(configuration, "", (str(tmp_path / "none.sock"),))
    assert own.configuration == configuration
    assert own.status is None
    assert "must answer within" in own.status_trouble
    assert doctor.kill_switch(own).verdict == "warn"
