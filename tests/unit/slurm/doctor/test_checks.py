from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpusage.boundary.edits import make_edits
from gpusage.cli.admin import Finding, OwnEvidence, gather_own
from gpusage.settings.configuration import Configuration, DaemonSettings, GpuSettings, SiteMode
from gpusage_hooks.types import Cluster, GpuPool, NodeKind
from gpusage_slurm.cluster.limits import Limit
from gpusage_slurm.cluster.observation import NO_RELEASE
from gpusage_slurm.doctor.checks import run_checks
from gpusage_slurm.doctor.evidence import Evidence, sampler_python
from gpusage_slurm.install.lua_scripts import LUA_FOLDER, job_submit_block, with_block
from gpusage_slurm.install.node_scripts import PROLOG, plan_copies
from gpusage_slurm.install.site import Site, socket_candidates
from gpusage_slurm.settings import SlurmSettings

POOL = GpuPool(gpu="v100-sxm2-16gb", site_type="v100", gpu_count=2, free_gpu_count=2, mps_per_gpu=100, feature="v100")
WHOLE = replace(POOL, mps_per_gpu=None)
OWN = OwnEvidence(configuration=Configuration(mode="enforce"), status_trouble="nobody")
SETTINGS: Mapping[str, str] = {
    "jobsubmitplugins": "lua",
    "clifilterplugins": "lua",
    "slurm_version": "26.05.5",
    "schedulerparameters": "ignore_prefer_validation",
    "accountingstoragetype": "accounting_storage/slurmdbd",
    "accountingstoragetres": "cpu,gres/gpu,gres/mps",
    "constraindevices": "yes",
    "taskplugin": "task/cgroup,task/affinity",
    "jobrequeue": "1",
}
SCRIPTS: Mapping[str, str] = {
    "slurm.conf": "AccountingStorageType=accounting_storage/slurmdbd\nPartitionName=p TRESBillingWeights=GRES/mps=1\n",
    "job_submit.lua": with_block("", "x"),
    "cli_filter.lua": with_block("", "x"),
}


@pytest.fixture
def healthy(tmp_path: Path) -> Evidence:
    names = ("task_prolog", "task_epilog", "prolog", "epilog")
    scripts = {name: tmp_path / f"gpusage_{name}.sh" for name in names}
    for script in scripts.values():
        script.touch(mode=0o755)
    node_side = {
        "taskprolog": str(scripts["task_prolog"]),
        "taskepilog": str(scripts["task_epilog"]),
        "prolog[0]": "/site/prolog",
        "prolog[1]": str(scripts["prolog"]),
        "epilog": str(scripts["epilog"]),
    }
    return Evidence(
        version=(26, 5),
        settings={**SETTINGS, **node_side},
        trouble="",
        site=Site(slurm_conf=Path("/c"), gpusage_toml=Path("/t"), command=Path("/g"), libexec=Path("/l")),
        scripts=SCRIPTS,
        gres_conf="Name=mps Count=200 File=/dev/nvidia[0-1] Flags=all_sharing\n",
        cluster=Cluster(manager="slurm", version="26.05", pools=(POOL,)),
        own=OwnEvidence(
            configuration=Configuration(mode="enforce"),
            status={"lines": {"requests": 1}, "records": {"lost": 0}},
            next_step="observe on",
        ),
        dry_run_arrived=True,
        lua_modules=frozenset({"socket", "posix"}),
        pyslurm=None,
        sampler="/opt/gpusage/bin/python",
        partitions=({"PartitionName": "p", "TRESBillingWeights": "GRES/gpu=100,GRES/mps=1"},),
    )


def with_own(evidence: Evidence, **changes: Any) -> Evidence:  # any field of what gpusage tells
    return replace(evidence, own=replace(evidence.own, **changes))


def finding(evidence: Evidence, check: str) -> Finding:
    return next(actual for actual in run_checks(evidence) if actual.check == check)


UNWRITTEN = {"lost": 0, "waiting": 2, "error": "full"}


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "words"),
    [
        ({"taskepilog": "/site/epilog"}, "task epilog", "warn", "TaskEpilog=/site/epilog: no job runs again"),
        ({"taskepilog": "/gone/gpusage_task_epilog.sh"}, "task epilog", "fail", "is not executable here"),
        ({"jobrequeue": "0"}, "task epilog", "warn", "JobRequeue=0"),
        ({"constraindevices": "no"}, "devices", "warn", "by its UUID"),
        ({"constraindevices": ""}, "devices", "warn", "by its UUID"),
        ({"taskplugin": "task/affinity"}, "devices", "warn", "by its UUID"),
    ],
)
def test_what_a_site_sets_otherwise_is_told(
    healthy: Evidence, changes: dict[str, str], check: str, verdict: str, words: str
) -> None:
    made = finding(replace(healthy, settings={**healthy.settings, **changes}), check)
    assert made.verdict == verdict
    assert words in made.observation


def test_a_site_that_lets_no_user_change_gres_is_told_by_what_its_script_refused(healthy: Evidence) -> None:
    made = finding(with_own(healthy, status={"missed": {"refused": 2}}), "task epilog")
    assert (made.verdict, "refused 2 times" in made.observation) == ("warn", True)


def test_cgroup_conf_says_too_whether_devices_are_constrained(healthy: Evidence) -> None:
    """Where slurmctld does not show it."""
    settings = {**healthy.settings, "constraindevices": ""}
    scripts = {**healthy.scripts, "cgroup.conf": "# ConstrainDevices=no\nConstrainDevices = yes\n"}
    assert finding(replace(healthy, settings=settings, scripts=scripts), "devices").verdict == "pass"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"foreign_mps": ("7 (/tmp/nvidia-mps)",)}, "7 (/tmp/nvidia-mps)"),
        ({"exclusive_gpus": ("0 (Exclusive_Process)",)}, "0 (Exclusive_Process)"),
    ],
)
def test_whoever_else_divides_this_nodes_gpus_is_told(healthy: Evidence, changes: dict[str, Any], words: str) -> None:
    made = finding(replace(healthy, **changes), "GPUs of this node")
    assert (made.verdict, words in made.observation) == ("warn", True)


def test_nodes_of_a_type_without_mps_are_told(healthy: Evidence) -> None:
    kinds = (NodeKind(has_shares=True), NodeKind(has_shares=False))
    partly = Cluster(manager="slurm", version="26.05", pools=(replace(POOL, node_kinds=kinds),))
    made = finding(replace(healthy, cluster=partly), "gres/mps")
    assert (made.verdict, "some nodes with v100 have no mps" in made.observation) == ("warn", True)


def test_limits_that_do_not_count_shares_are_told_with_the_lines_to_add(healthy: Evidence) -> None:
    limits = (
        Limit(scope="qos=a", reason="quality of service a has a limit", remedies=("weigh", "limit a")),
        Limit(scope="qos=b", reason="quality of service b has a limit", remedies=("weigh", "limit b")),
        Limit(scope="qos=c", reason="quality of service c allows no GPU"),
    )
    made = finding(replace(healthy, limits=limits), "limits")
    assert (made.verdict, made.todo) == ("fail", "weigh; limit a; limit b")
    assert made.observation == "quality of service a has a limit, and 1 more such limits: whole GPUs are kept there"
    unknown = finding(replace(healthy, limits=None, limits_trouble="no answer"), "limits")
    assert (unknown.verdict, "no answer" in unknown.observation) == ("fail", True)


def test_a_healthy_site_passes_every_check(healthy: Evidence) -> None:
    assert [actual for actual in run_checks(healthy) if actual.verdict != "pass"] == []


@pytest.mark.parametrize(
    ("lines", "missed", "verdict", "expected"),
    [
        ({"requests": 100, "overdue": 5}, {"silent": 2}, "pass", "of 100 jobs 5 had no answer in time, 0 were"),
        ({"requests": 100, "overdue": 6}, {}, "warn", "of 100 jobs 6 had"),
        (
            {"requests": 90, "overdue": 3},
            {"silent": 3, "rest": 10},
            "warn",
            "of 100 jobs 3 had no answer in time, 10 were",
        ),
        ({}, {}, "pass", "of 0 jobs"),
    ],
)
def test_jobs_that_got_no_answer_in_time_are_told(
    healthy: Evidence, lines: dict[str, int], missed: dict[str, int], verdict: str, expected: str
) -> None:
    made = finding(with_own(healthy, status={"lines": lines, "missed": missed}), "answers in time")
    assert (made.verdict, made.observation[: len(expected)]) == (verdict, expected)


def test_gpusaged_is_looked_for_where_slurmctld_asks_too() -> None:
    ours = Configuration(daemon=DaemonSettings(socket="/ours"))
    block = with_block("return 0\n", job_submit_block(LUA_FOLDER, "/it's \"\u00e9\\", 40))
    usual = DaemonSettings().socket
    assert socket_candidates(ours, "") == ("/ours", usual)
    assert socket_candidates(None, block) == ("/it's \"\u00e9\\", usual)
    assert socket_candidates(ours, 'socket = "/the/sites/own"') == ("/ours", usual)


def test_each_finding_that_is_no_pass_says_what_to_do(healthy: Evidence) -> None:
    nothing = replace(
        with_own(healthy, status=None, killed=True, configuration_trouble="broken"),
        version=None,
        settings={},
        scripts={},
        gres_conf="",
        cluster=None,
        dry_run_arrived=None,
        lua_modules=frozenset(),
    )
    actual = run_checks(nothing)
    assert {each.verdict for each in actual} == {"pass", "warn", "fail", "skip"}
    assert {each.check for each in actual} == {each.check for each in run_checks(healthy)}
    assert all(each.todo for each in actual if each.verdict != "pass")


@pytest.mark.parametrize(
    ("settings", "scripts", "mode", "verdict"),
    [
        (
            {"accountingstoragetres": "cpu,gres/gpu"},
            {"slurm.conf": SCRIPTS["slurm.conf"].partition("\n")[0]},
            "enforce",
            "fail",
        ),
        (
            {"accountingstoragetres": "cpu,gres/gpu"},
            {"slurm.conf": SCRIPTS["slurm.conf"].partition("\n")[0]},
            "observe",
            "warn",
        ),
        ({"accountingstoragetres": "cpu,gres/gpu"}, {}, "enforce", "fail"),
        ({"accountingstoragetres": "cpu,gres/mps"}, {"slurm.conf": ""}, "enforce", "pass"),
        ({"accountingstoragetype": "accounting_storage/none"}, {"slurm.conf": ""}, "enforce", "pass"),
    ],
    ids=[
        "enforce, not counted",
        "observe, not counted",
        "not counted till a restart",
        "counted",
        "no accounting at all",
    ],
)
def test_enforce_is_refused_while_shares_are_neither_tracked_nor_billed(
    healthy: Evidence, settings: dict[str, str], scripts: dict[str, str], mode: SiteMode, verdict: str
) -> None:
    evidence = replace(
        with_own(healthy, configuration=Configuration(mode=mode)),
        settings={**healthy.settings, **settings},
        scripts={**healthy.scripts, **scripts},
    )
    assert finding(evidence, "accounting").verdict == verdict


@pytest.mark.parametrize(
    ("check", "changes", "verdict", "words"),
    [
        ("slurmctld", {"version": (21, 8)}, "fail", "22.05 or newer"),
        ("job_submit plugin", {"scripts": {}}, "fail", "gpusage slurm install"),
        ("LuaSocket", {"lua_modules": frozenset(), "dry_run_arrived": False}, "fail", "lua-socket"),
        ("installation", {"outdated": ("job_submit.lua",)}, "warn", "gpusage slurm install"),
        ("luaposix", {"lua_modules": frozenset({"socket"})}, "warn", "lua-posix"),
        ("gres/mps", {"cluster": Cluster(manager="slurm", version="", pools=())}, "fail", "declare gres/gpu"),
        ("gres/mps", {"cluster": Cluster(manager="slurm", version="", pools=(WHOLE,))}, "fail", "mps"),
        (
            "accounting",
            {"partitions": ({"PartitionName": "p", "TRESBillingWeights": "GRES/gpu=50,GRES/mps=1"},)},
            "warn",
            "GRES/mps=0.5 in partition p",
        ),
        ("all_sharing", {"gres_conf": "Name=mps Count=200\n"}, "warn", "Flags=all_sharing"),
        ("mps units", {"scripts": {"slurm.conf": "NodeName=n Gres=gpu:v100:2,mps:v100:200\n"}}, "warn", "mps:200"),
        ("defaults per GPU", {"scripts": {"slurm.conf": "PartitionName=p DefMemPerGPU=9\n"}}, "warn", "DefMemPerCPU"),
        ("gpusaged", {"own": OWN}, "fail", "systemctl"),
        ("answers in time", {"own": OWN}, "warn", "fix that first"),
        ("store", {"own": OWN}, "warn", "fix that first"),
        ("dry run", {"dry_run_arrived": False}, "fail", "slurmctld's log"),
        ("store", {"own": replace(OWN, status={"records": UNWRITTEN})}, "warn", "check sqlite"),
        ("kill switch", {"own": replace(OWN, killed=True)}, "warn", "remove it"),
        ("PySlurm", {"pyslurm": (22, 5)}, "warn", "matching"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found_with_its_cure(
    healthy: Evidence, check: str, changes: dict[str, object], verdict: str, words: str
) -> None:
    result = finding(replace(healthy, **changes), check)  # type: ignore[arg-type] - fields of Evidence
    assert result.verdict == verdict
    assert words in result.todo


def test_without_ignore_prefer_validation_no_generation_is_preferred_and_doctor_says_so(healthy: Evidence) -> None:
    evidence = replace(healthy, settings={**healthy.settings, "schedulerparameters": ""})
    assert finding(evidence, "features").verdict == "warn"


@pytest.mark.parametrize(
    ("running", "verdict", "dry_run"),
    [
        ("26.05.5", "pass", "pass"),
        ("26.05.4", "pass", "pass"),
        ("26.05.3", "warn", "pass"),
        ("26.05.1", "warn", "warn"),
        ("26.05.0-rc1", "warn", "warn"),
        ("25.11.8", "pass", "pass"),
        ("25.11.2", "warn", "pass"),
        ("25.05.9", "pass", "pass"),
        ("24.11.7", "warn", "pass"),
        ("22.05.8", "fail", "pass"),
        ("26.11.0", "pass", "pass"),
        ("", "pass", "pass"),
    ],
)
def test_releases_that_crash_in_a_dry_run_or_have_known_vulnerabilities_are_named(
    healthy: Evidence, running: str, verdict: str, dry_run: str
) -> None:
    evidence = replace(healthy, settings={**healthy.settings, "slurm_version": running})
    assert (finding(evidence, "release").verdict, finding(evidence, "dry run").verdict) == (verdict, dry_run)


@pytest.mark.parametrize(
    ("running", "verdict", "accepted"),
    [
        ("22.05.8", "fail", "warn"),
        ("23.11.4", "fail", "warn"),
        ("23.11.5", "warn", "warn"),
        ("26.05.5", "pass", "pass"),
    ],
)
def test_releases_that_give_a_gpu_with_shares_away_fail_until_that_is_accepted(
    healthy: Evidence, running: str, verdict: str, accepted: str
) -> None:
    evidence = replace(healthy, settings={**healthy.settings, "slurm_version": running})
    accepting = Configuration(mode="enforce", managers={"slurm": SlurmSettings(accept_double_booking=True)})
    findings = [finding(each, "release") for each in (evidence, with_own(evidence, configuration=accepting))]
    assert [each.verdict for each in findings] == [verdict, accepted]
    assert all(("that has shares" in each.observation) is (verdict == "fail") for each in findings)


@pytest.mark.parametrize(("mode", "verdict"), [("observe", "warn"), ("advise", "warn"), ("enforce", "fail")])
@pytest.mark.parametrize("key", ["prolog[1]", "epilog"])
def test_enforce_fails_without_prolog_or_epilog(healthy: Evidence, key: str, mode: SiteMode, verdict: str) -> None:
    evidence = replace(
        with_own(healthy, configuration=Configuration(mode=mode)),
        settings={**healthy.settings, key: "/site/other"},
    )
    assert finding(evidence, "node prolog").verdict == verdict
    assert "gpusage slurm install" in finding(evidence, "node prolog").todo


def test_a_node_that_samples_nothing_is_warned_of(healthy: Evidence) -> None:
    result = finding(replace(healthy, sampler=""), "sampler")
    assert (result.verdict, "install --node" in result.todo) == ("warn", True)


def test_the_script_itself_says_which_python_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the prolog that slurm.conf names, or where a wrapper's own prolog lies."""
    copies = tmp_path / "libexec"
    monkeypatch.setenv("GPUSAGE_LIBEXEC", str(copies))
    make_edits(plan_copies(copies))
    prolog = tmp_path / "gpusage_prolog.sh"
    assert sampler_python(str(prolog)) == ""
    prolog.write_text(f"#!/bin/sh\nexec {PROLOG.copy(copies)}\n")
    assert Path(sampler_python(str(prolog))).is_file()
    prolog.write_text("#!/bin/sh\n")
    script = tmp_path / "usage.sh"
    script.write_text('#!/bin/sh\n[ "$1" = python ] && echo /opt/python\n')
    script.chmod(0o755)
    assert sampler_python(str(prolog)) == "/opt/python"


def test_the_long_name_of_the_lua_plugin_counts(healthy: Evidence) -> None:
    evidence = replace(healthy, settings={**healthy.settings, "jobsubmitplugins": "throttle,job_submit/lua"})
    assert finding(evidence, "job_submit plugin").verdict == "pass"


@pytest.mark.parametrize(
    ("mode", "uid", "verdict"),
    [("enforce", 61184, "warn"), ("enforce", 64030, "pass"), ("enforce", 0, "pass"), ("advise", 61184, "pass")],
)
def test_a_daemon_that_may_change_no_job_is_told_of_before_one_is_stuck(
    healthy: Evidence, mode: SiteMode, uid: int, verdict: str
) -> None:
    """The unit's own user is such a one."""
    settings = {**healthy.settings, "slurmuser": "slurm(64030)"}
    own = OwnEvidence(configuration=Configuration(mode=mode), status={})
    made = replace(healthy, settings=settings, daemon_uid=uid, own=own)
    result = finding(made, "rewritten jobs")
    assert result.verdict == verdict
    if verdict == "warn":
        assert "User=" in result.todo
        stuck = {"job_monitor": {"stuck": ["job 7 cannot start"]}}
        assert "User=" in finding(with_own(made, status=stuck), "rewritten jobs").todo


def test_a_prolog_that_others_than_root_may_change_is_warned_of(healthy: Evidence, tmp_path: Path) -> None:
    by_root = replace(healthy, settings={**healthy.settings, "slurmduser": "root(0)"})
    tmp_path.chmod(0o777)
    (finding,) = [actual for actual in run_checks(by_root) if actual.check == "node prolog"]
    assert finding.verdict == "warn"
    assert "may be changed by others than root" in finding.observation
    (finding,) = [actual for actual in run_checks(healthy) if actual.check == "node prolog"]
    assert finding.verdict == "pass"  # slurmd of an ordinary user


def test_an_alias_without_effect_is_warned_of(healthy: Evidence) -> None:
    aliases = GpuSettings(aliases={"big": "h1000"})
    own = gather_own(Configuration(gpus=aliases), "", ["/nonexistent"])
    made = finding(replace(healthy, own=own), "gpusage.toml")
    assert (made.verdict, "Key 'gpus.aliases.big' must name a GPU" in made.observation) == ("warn", True)


def with_settings(evidence: Evidence, **settings: str) -> Evidence:
    return replace(evidence, settings={**evidence.settings, **settings})


def test_what_limits_memory_is_said_of_each_gpu_type_and_nothing_is_warned_of(healthy: Evidence) -> None:
    walled = replace(POOL, site_type="h100", limited_by="wall")
    capped = replace(POOL, why_no_wall="no cgroup v2")
    pools = (walled, capped, replace(WHOLE, limited_by="none"))  # the last is not shared
    result = finding(replace(healthy, cluster=Cluster(manager="slurm", version="26.05", pools=pools)), "memory limits")
    assert (result.verdict, result.observation) == ("pass", "wall on h100; cap on v100: no cgroup v2")

    bare = Cluster(manager="slurm", version="26.05", pools=(replace(POOL, limited_by="none"),))
    result = finding(replace(healthy, cluster=bare), "memory limits")
    assert (result.verdict, result.observation) == ("warn", "none on v100")


def test_a_prolog_inside_the_job_takes_the_mps_daemon_with_it(healthy: Evidence) -> None:
    result = finding(with_settings(healthy, prologflags="Alloc,Contain,RunInJob"), "node prolog")
    assert (result.verdict, "no GPU is shared" in result.observation) == ("warn", True)


def test_a_dev_shm_of_each_jobs_own_is_told(healthy: Evidence) -> None:
    result = finding(with_settings(healthy, jobcontainertype="job_container/tmpfs"), "job containers")
    assert (result.verdict, "Dirs= in job_container.conf" in result.todo) == ("warn", True)


@pytest.mark.parametrize(
    ("uid", "hidden", "verdict"),
    [(990, "jobs,usage", "warn"), (990, "usage", "pass"), (64030, "jobs", "pass"), (0, "nodes", "pass")],
)
def test_what_slurmctld_hides_from_gpusaged_is_told(healthy: Evidence, uid: int, hidden: str, verdict: str) -> None:
    evidence = with_settings(healthy, slurmuser="slurm(64030)", privatedata=hidden)
    assert finding(replace(evidence, daemon_uid=uid), "private data").verdict == verdict


@pytest.mark.parametrize(("partitions", "verdict"), [(("p",), "pass"), (("p", "q"), "warn"), ((), "pass")])
def test_partitions_in_which_a_site_enforces_must_be_there(
    healthy: Evidence, partitions: tuple[str, ...], verdict: str
) -> None:
    """A slip there would leave every job observed without a word."""
    result = finding(
        with_own(healthy, configuration=Configuration(mode="enforce", enforce_in=partitions)), "partitions"
    )
    assert (result.verdict, "names q" in result.observation) == (verdict, "q" in partitions)


def test_gpus_that_nothing_names_are_told_with_the_line_to_write(healthy: Evidence) -> None:
    assert healthy.cluster is not None
    assert finding(healthy, "GPU types").verdict == "pass"
    cluster = replace(healthy.cluster, notes=(NO_RELEASE, "4 GPUs are not understood: write Features=a100 there"))
    warning = finding(replace(healthy, cluster=cluster), "GPU types")
    assert (warning.verdict, warning.observation) == ("warn", "4 GPUs are not understood")
    assert warning.todo == "write Features=a100 there"
