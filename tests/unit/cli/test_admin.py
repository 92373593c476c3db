"""What the doctors of all workload managers say of gpusage itself."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gpusage.cli import admin
from gpusage.cli.admin import OwnEvidence
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.node.dividing.programs import Offers, host_offers, parse_offers
from gpusage.reports.breakdown import ReportRules
from gpusage.reports.brief import next_step
from gpusage.reports.reading import Reader, rules_of
from gpusage.reports.report import part_of
from gpusage.reports.summary import PartitionTally
from gpusage.settings.configuration import Configuration, StoreSettings
from gpusage.store.opening import open_store
from gpusage_hooks.units import DAY_S
from mps import control_in

OWN = OwnEvidence(configuration=Configuration(), status={"v": 1})


def test_broken_plugins_are_told_as_this_process_and_gpusaged_found_them() -> None:
    status = {"plugins": {"there": "Plugin 'there' is bad."}}
    here = {"here": "Plugin 'here' is bad."}
    finding = admin.plugins(OwnEvidence(configuration=Configuration(), status=status, plugin_troubles=here))
    assert (finding.verdict, finding.observation) == ("warn", "Plugin 'here' is bad. Plugin 'there' is bad.")
    assert admin.plugins(OWN).verdict == "pass"
    assert admin.plugins(OwnEvidence(configuration=Configuration())).verdict == "pass"


def test_decisions_that_were_lost_are_told_with_the_store() -> None:
    status = {"records": {"lost": 3, "waiting": 2, "error": "disk full"}}
    finding = admin.store(OwnEvidence(configuration=Configuration(), status=status))
    assert (finding.verdict, finding.observation) == ("warn", "3 decisions could not be kept, 2 wait: disk full")
    assert finding.todo == f"check {Configuration().store.url}"
    assert admin.store(OWN).verdict == "pass"


def test_a_store_of_two_clusters_fails_whatever_gpusaged_says(tmp_path: Path) -> None:
    configuration = Configuration(store=StoreSettings(url=f"sqlite:///{tmp_path}/d.db"))
    with closing(open_store(configuration.store.url)) as opened:
        opened.note_cluster(time.time() // DAY_S * DAY_S, "slurm", "alpha", 4)
        own = admin.gather_own(configuration, "", (str(tmp_path / "none.sock"),))
        assert admin.store(own).verdict == "warn"
        opened.note_cluster(time.time() // DAY_S * DAY_S, "slurm", "beta", 4)
    finding = admin.store(admin.gather_own(configuration, "", (str(tmp_path / "none.sock"),)))
    assert finding.verdict == "fail"
    assert "got slurm 'alpha' and slurm 'beta' in the last 3 days" in finding.observation
    assert "docs/admin.md" in finding.todo


def test_the_daemon_counts_as_troubled_by_its_configuration_or_the_manager_that_is_asked_about() -> None:
    troubles = {"troubles": {"pbs": "pbs does not answer"}}
    assert admin.daemon_trouble(troubles, "pbs") == "pbs does not answer"
    assert admin.daemon_trouble(troubles, "lsf") == ""
    assert admin.daemon_trouble({**troubles, "configuration": {"error": "broken"}}, "pbs") == "broken"


def test_where_no_daemon_answers_the_settings_of_the_file_stand(tmp_path: Path) -> None:
    switch = tmp_path / "off"
    switch.touch()
    configuration = Configuration(kill_switch=str(switch))
    own = admin.gather_own(configuration, "", (str(tmp_path / "none.sock"),))
    assert own.configuration == configuration
    assert own.status is None
    assert "must answer within" in own.status_trouble
    assert admin.kill_switch(own).verdict == "warn"


def test_the_doctor_says_what_the_report_s_fifth_line_says_of_the_days_that_are_added_up(tmp_path: Path) -> None:
    configuration = Configuration(store=StoreSettings(url=f"sqlite:///{tmp_path}/d.db"))
    finding = admin.seen_enough(admin.gather_own(configuration, "", (str(tmp_path / "none.sock"),)))
    assert (finding.verdict, finding.observation) == ("skip", "gpusaged has added up no day yet")

    tally = PartitionTally(partition="test", job_count=400, checks={"kept": 20, "broken": 1}, users={"ada": 1})
    part = msgspec.structs.replace(part_of([], [], ReportRules()), partitions=(tally,))
    today_s = time.time() // DAY_S * DAY_S
    with closing(open_store(configuration.store.url)) as store:
        form = Reader(store=store, rules=rules_of(configuration, builtin_catalogue())).form
        for day_s in (today_s - 40 * DAY_S, today_s - 2 * DAY_S, today_s - DAY_S):
            store.claim_day(day_s)
            store.record_day(day_s, msgspec.json.encode(part), form)
    finding = admin.seen_enough(admin.gather_own(configuration, "", (str(tmp_path / "none.sock"),)))
    twice = PartitionTally(partition="test", job_count=800, checks={"kept": 40, "broken": 2}, users={"ada": 2})
    assert finding.observation == f"{next_step('advise', (), [twice])} (by 2 whole days)"
    assert finding.observation.startswith('mode = "enforce" and enforce_in = ["test"] in gpusage.toml: of 800 jobs')

    (tmp_path / "d.db").write_bytes(b"no database, but a text of some length")
    finding = admin.seen_enough(admin.gather_own(configuration, "", (str(tmp_path / "none.sock"),)))
    assert finding.verdict == "skip"
    assert "must be read" in finding.observation
    at_a_server = Configuration(store=StoreSettings(url="postgresql://gpusage@db.site/usage"))
    finding = admin.seen_enough(OwnEvidence(configuration=at_a_server, store_trouble="The server is away."))
    assert finding.todo == "run this as root or as the daemon's user, or check postgresql://gpusage@db.site/usage"


def test_a_host_with_mps_is_told_how_it_divides_a_gpu_and_another_host_nothing() -> None:
    text = "version 13010\ndivision percentage\ndivision partition\ndivision whole\nnoise\n"
    divided = "this host divides by percentage and partition, MPS 13010; a share's memory is limited by a "
    for lines, limit in {
        "limited_by wall\n": "wall",
        "limited_by cap\nbecause cgroup v2 is not here\n": "cap (cgroup v2 is not here)",
    }.items():
        (finding,) = admin.divisions(OwnEvidence(configuration=Configuration(), offers=parse_offers(f"{text}{lines}")))
        assert (finding.verdict, finding.observation) == ("pass", divided + limit)
    assert admin.divisions(OWN) == ()
    assert parse_offers("limited_by magic") == parse_offers("") == Offers()


@pytest.mark.parametrize(
    ("version", "divisions"),
    [("12080", ("percentage", "whole")), ("13010", ("percentage", "partition", "whole"))],
)
def test_a_host_offers_partitions_from_13010_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, divisions: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GPUSAGE_MPS_CONTROL", str(control_in(tmp_path)))
    monkeypatch.setenv("STANDIN_VERSION", version)
    monkeypatch.setenv("GPUSAGE_CGROUP_FOLDER", str(tmp_path))
    because = f"cgroup v2 is not at {tmp_path}"
    assert host_offers() == Offers(version=version, divisions=divisions, limited_by="cap", because=because)
