import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.boundary.edits import make_edits
from gpusage_hooks.errors import RequestError
from gpusage_slurm.install.node_scripts import SCRIPTS, plan_copies, plan_removal
from gpusage_slurm.install.site import (
    Site,
    find_site,
    new_node_scripts,
    plan_installation,
    plan_uninstallation,
    tracks_or_bills_mps,
)
from gpusage_slurm.install.slurm_conf import setting
from mps import commands_sent, control_in

SLURM_CONF = """\
ClusterName=c
JobSubmitPlugins=all_partitions  # the site's
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageTRES=gres/gpu
NodeName=n1 Gres=gpu:v100:2,mps:200
"""
JOB_SUBMIT = """\
function slurm_job_submit(job, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "gpusage.toml"))
    (tmp_path / "slurm.conf").write_text(SLURM_CONF)
    (tmp_path / "job_submit.lua").write_text(JOB_SUBMIT)
    return Site(
        slurm_conf=tmp_path / "slurm.conf",
        gpusage_toml=tmp_path / "gpusage.toml",
        command=Path("/opt/gpusage/bin/gpusage"),
        libexec=tmp_path / "libexec",
    )


def contents(site: Site) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in site.folder.rglob("*") if path.is_file()}


def test_planning_writes_nothing(site: Site) -> None:
    before = contents(site)
    assert any(edit.changes for edit in plan_installation(site))
    assert contents(site) == before


def test_installing_adds_to_the_sites_lists_and_keeps_what_is_there(site: Site) -> None:
    make_edits(plan_installation(site))
    text = site.slurm_conf.read_text()
    assert setting(text, "JobSubmitPlugins") == "all_partitions,lua"
    assert setting(text, "CliFilterPlugins") == "lua"
    assert setting(text, "AccountingStorageTRES") == "gres/gpu,gres/mps"
    for key, name in (
        ("TaskProlog", "gpusage_task_prolog.sh"),
        ("Prolog", "gpusage_prolog.sh"),
        ("Epilog", "gpusage_epilog.sh"),
        ("TaskEpilog", "gpusage_task_epilog.sh"),
    ):
        script = Path(str(setting(text, key)))
        assert script == site.libexec / name
        assert os.access(script, os.X_OK)
    assert 'mode = "observe"' in site.gpusage_toml.read_text()


def test_without_slurmdbd_nothing_is_tracked_for_slurmctld_would_not_start(site: Site) -> None:
    site.slurm_conf.write_text("ClusterName=c\n")
    make_edits(plan_installation(site))
    assert setting(site.slurm_conf.read_text(), "AccountingStorageTRES") is None


def test_installing_twice_changes_nothing(site: Site) -> None:
    make_edits(plan_installation(site))
    assert not any(edit.changes for edit in plan_installation(site))


def test_uninstalling_gives_every_byte_back(site: Site) -> None:
    before = contents(site)
    make_edits(plan_installation(site, "enforce"))
    make_edits(plan_uninstallation(site))
    assert site.slurm_conf.read_text() == SLURM_CONF
    make_edits(plan_uninstallation(site))
    assert contents(site) == before
    assert not any(edit.changes for edit in plan_uninstallation(site))


def test_what_slurm_runs_stays_until_no_slurm_conf_and_no_slurmctld_names_it(site: Site) -> None:
    make_edits(plan_installation(site))
    copies = sorted(site.libexec.iterdir())
    make_edits(plan_uninstallation(site))
    make_edits(plan_uninstallation(site, in_use=True))
    assert sorted(site.libexec.iterdir()) == copies
    make_edits(plan_uninstallation(site))
    assert list(site.libexec.iterdir()) == []


def test_uninstalling_keeps_what_the_site_changed_meanwhile(site: Site) -> None:
    make_edits(plan_installation(site))
    site.slurm_conf.write_text(site.slurm_conf.read_text() + "PartitionName=p Nodes=n1\n")
    site.gpusage_toml.write_text(site.gpusage_toml.read_text() + "[sharing]\nenabled = false\n")
    make_edits(plan_uninstallation(site))
    assert site.slurm_conf.read_text() == SLURM_CONF + "PartitionName=p Nodes=n1\n"
    assert "enabled = false" in site.gpusage_toml.read_text()


def test_a_task_prolog_of_the_sites_own_still_runs_first(site: Site) -> None:
    site.slurm_conf.write_text(SLURM_CONF + "TaskProlog=/site/prolog\n")
    make_edits(plan_installation(site))
    wrapper = Path(str(setting(site.slurm_conf.read_text(), "TaskProlog")))
    lines = wrapper.read_text().splitlines()
    assert lines[2].startswith("/site/prolog ")
    assert lines[3].endswith("libexec/gpusage_task_prolog.sh")
    assert wrapper.stat().st_mode & 0o111
    assert not any(edit.changes for edit in plan_installation(site))


def run(script: Path) -> tuple[int, list[str]]:
    done = subprocess.run([script], capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})
    return done.returncode, done.stdout.split()


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def wrappers(site: Site, folder: Path) -> tuple[Path, Path]:
    """Install, and return the wrappers of prolog and epilog, with stand-ins for ours that say what they were told."""
    make_edits(plan_installation(site))
    text = site.slurm_conf.read_text()
    actual = []
    for key in ("Prolog", "Epilog"):
        path = Path(str(setting(text, key)))
        ours = written(folder / f"ours-{key}", 'echo "ours${GPUSAGE_ACROSS_USERS:+-for-all}"')
        path.write_text(path.read_text().replace(str(site.libexec / f"gpusage_{key.lower()}.sh"), str(ours)))
        actual.append(path)
    return actual[0], actual[1]


def test_a_prolog_of_the_sites_own_still_runs_first_and_its_epilog_last(site: Site, tmp_path: Path) -> None:
    own = written(tmp_path / "own", "echo site")
    site.slurm_conf.write_text(f"{SLURM_CONF}Prolog={own}\nEpilog={own}\n")
    prolog, epilog = wrappers(site, tmp_path)
    assert run(prolog) == (0, ["site", "ours"])
    assert run(epilog) == (0, ["ours", "site"])
    written(own, "echo site", "exit 3")
    assert run(prolog) == (3, ["site"])
    assert run(epilog) == (3, ["ours", "site"])


def test_a_pattern_of_the_sites_own_prologs_runs_them_as_slurm_does_the_last_name_first(
    site: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "prolog.d"
    folder.mkdir()
    for name in ("10-a", "20-b", "c"):
        written(folder / name, f"echo {name}")
    site.slurm_conf.write_text(f"{SLURM_CONF}Prolog={folder}/*\nEpilog={folder}/[12]*\n")
    prolog, epilog = wrappers(site, tmp_path)
    assert run(prolog) == (0, ["c", "20-b", "10-a", "ours"])
    assert run(epilog) == (0, ["ours", "20-b", "10-a"])
    written(folder / "20-b", "exit 4")
    assert run(prolog) == (4, ["c"])
    shutil.rmtree(folder)
    assert run(prolog)[0] == 127  # Slurm drains a node where its pattern finds nothing; so it does still


def test_sharing_across_users_reaches_the_prolog(site: Site, tmp_path: Path) -> None:
    site.gpusage_toml.write_text("[sharing]\nacross_users = true\n")
    prolog, _ = wrappers(site, tmp_path)
    assert run(prolog) == (0, ["ours-for-all"])
    site.gpusage_toml.write_text("[sharing]\nacross_users = false\n")
    make_edits(plan_installation(site))
    assert setting(site.slurm_conf.read_text(), "Prolog") == str(site.libexec / "gpusage_prolog.sh")


def test_what_nodes_must_have_is_named(site: Site) -> None:
    assert [Path(path).name for path in new_node_scripts(plan_installation(site))] == [
        "gpusage_task_prolog.sh",
        "gpusage_prolog.sh",
        "gpusage_epilog.sh",
        "gpusage_task_epilog.sh",
    ]
    make_edits(plan_installation(site))
    assert new_node_scripts(plan_installation(site)) == ()


def test_the_long_name_of_the_lua_plugin_is_enough(site: Site) -> None:
    site.slurm_conf.write_text("JobSubmitPlugins=job_submit/lua\nCliFilterPlugins=cli_filter/lua\n")
    make_edits(plan_installation(site))
    assert setting(site.slurm_conf.read_text(), "JobSubmitPlugins") == "job_submit/lua"
    assert setting(site.slurm_conf.read_text(), "CliFilterPlugins") == "cli_filter/lua"


def test_an_include_named_after_the_cluster_is_followed_and_what_it_includes(site: Site) -> None:
    site.slurm_conf.write_text("ClusterName=Big\nInclude site_%c.conf\n")
    (site.folder / "site_big.conf").write_text("Include more/%c.conf\n")
    (site.folder / "more").mkdir()
    (site.folder / "more" / "big.conf").write_text("JobSubmitPlugins=throttle\nInclude big.conf\n")
    make_edits(plan_installation(site))
    assert setting((site.folder / "more" / "big.conf").read_text(), "JobSubmitPlugins") == "throttle,lua"
    assert setting(site.slurm_conf.read_text(), "JobSubmitPlugins") is None


@pytest.mark.parametrize("name", ["with blank", "with#sign"])
def test_a_path_that_slurm_conf_cannot_name_is_refused(site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = site.folder / name
    folder.mkdir()
    (folder / "slurm.conf").write_text(SLURM_CONF)
    with pytest.raises(RequestError, match="no blanks"):
        find_site(folder / "slurm.conf")
    monkeypatch.setattr("sys.executable", str(folder / "bin" / "python"))
    with pytest.raises(RequestError, match="no blanks"):
        find_site(site.slurm_conf)


def test_slurm_conf_is_kept_as_it_was_before_the_first_installation(site: Site) -> None:
    job_ids = site.folder / "slurm.conf.gpusage-before"
    make_edits(plan_installation(site))
    site.slurm_conf.write_text(site.slurm_conf.read_text().replace("TaskProlog", "#TaskProlog"))
    make_edits(plan_installation(site))
    assert job_ids.read_text() == SLURM_CONF
    make_edits(plan_uninstallation(site))
    assert job_ids.exists() == (site.slurm_conf.read_text() != SLURM_CONF)


def test_a_wrapped_task_prolog_outlives_a_node_without_gpusage(site: Site) -> None:
    own = site.folder / "it's a prolog"
    own.write_text("#!/bin/sh\necho print own\n")
    own.chmod(0o755)
    site.slurm_conf.write_text(f"{SLURM_CONF}TaskProlog={own}\n")
    make_edits(plan_installation(site))
    wrapper = site.folder / "gpusage_task_prolog.sh"
    wrapper.write_text(wrapper.read_text().replace("libexec/gpusage_task_prolog.sh", "gone.sh"))
    done = subprocess.run([wrapper], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "print own\n")


def test_an_empty_task_prolog_is_none(site: Site) -> None:
    site.slurm_conf.write_text("TaskProlog=\n")
    make_edits(plan_installation(site))
    assert not (site.folder / "gpusage_task_prolog.sh").exists()


def test_slurm_conf_is_written_last_for_sbatch_reads_it_at_once(site: Site) -> None:
    assert plan_installation(site)[-1].path == site.slurm_conf
    make_edits(plan_installation(site))
    assert plan_uninstallation(site)[0].path == site.slurm_conf


def test_a_copy_that_fails_fails_no_job(site: Site, tmp_path: Path) -> None:
    own = written(tmp_path / "own", "echo site")
    site.slurm_conf.write_text(f"{SLURM_CONF}Prolog={own}\nEpilog={own}\n")
    for wrapper in wrappers(site, tmp_path):
        for name in ("Prolog", "Epilog"):
            written(tmp_path / f"ours-{name}", "exit 7")
        assert run(wrapper) == (0, ["site"])


def test_scripts_go_beside_a_linked_slurm_conf(site: Site, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "slurm.conf").symlink_to(site.slurm_conf)
    assert find_site(tmp_path / "etc" / "slurm.conf").folder == tmp_path / "etc"


def test_a_quoted_list_is_added_to_inside_its_quotes(site: Site) -> None:
    site.slurm_conf.write_text('JobSubmitPlugins="all_partitions"\n')
    make_edits(plan_installation(site))
    assert setting(site.slurm_conf.read_text(), "JobSubmitPlugins") == "all_partitions,lua"
    assert '"' not in site.slurm_conf.read_text().partition("#")[0]


def test_a_setting_in_an_included_file_is_changed_there(site: Site) -> None:
    site.slurm_conf.write_text("ClusterName=c\nInclude plugins.conf\n")
    (site.folder / "plugins.conf").write_text("JobSubmitPlugins=all_partitions\n")
    make_edits(plan_installation(site))
    assert setting((site.folder / "plugins.conf").read_text(), "JobSubmitPlugins") == "all_partitions,lua"
    assert setting(site.slurm_conf.read_text(), "JobSubmitPlugins") is None


def test_a_changed_mode_is_written_and_other_settings_stay(site: Site) -> None:
    site.gpusage_toml.write_text('mode = "observe"\nkill_switch = "/tmp/x"\n')
    make_edits(plan_installation(site, "enforce"))
    assert site.gpusage_toml.read_text() == 'mode = "enforce"\nkill_switch = "/tmp/x"\n'


def test_a_mode_in_single_quotes_is_not_given_twice(site: Site) -> None:
    site.gpusage_toml.write_text("mode = 'observe'\n")
    make_edits(plan_installation(site, "enforce"))
    assert site.gpusage_toml.read_text() == 'mode = "enforce"\n'


def test_where_one_file_cannot_be_written_none_is_changed(site: Site) -> None:
    (site.folder / "cli_filter.lua").symlink_to(site.folder / "nowhere" / "cli_filter.lua")
    before = site.slurm_conf.read_bytes()
    with pytest.raises(RequestError, match=r"cli_filter\.lua.* must be writable.*nothing was changed"):
        make_edits(plan_installation(site))
    assert site.slurm_conf.read_bytes() == before


def test_the_systemd_unit_starts_this_installations_daemon_and_goes_with_it(site: Site, tmp_path: Path) -> None:
    with_unit = replace(site, unit_folder=tmp_path / "units")
    make_edits(plan_installation(with_unit))
    unit = tmp_path / "units" / "gpusaged.service"
    assert "ExecStart=/opt/gpusage/bin/gpusaged\n" in unit.read_text()
    assert not any(edit.changes for edit in plan_installation(with_unit))
    make_edits(plan_uninstallation(with_unit))
    assert not unit.exists()


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("AccountingStorageTRES=gres/gpu", False),
        ("AccountingStorageTRES=gres/gpu,gres/mps", True),
        ("PartitionName=p Nodes=n TRESBillingWeights=CPU=1,GRES/mps=0.01", True),
        ("# PartitionName=p TRESBillingWeights=GRES/mps=0.01", False),
    ],
)
def test_a_share_counts_where_it_is_tracked_or_billed(text: str, counted: bool) -> None:  # a parameter
    assert tracks_or_bills_mps(text) is counted


def test_a_node_without_python_has_all_that_it_runs_in_one_folder(tmp_path: Path) -> None:
    folder, mps = tmp_path / "libexec", tmp_path / "mps"
    make_edits(plan_copies(folder))
    assert not any(edit.changes for edit in plan_copies(folder))
    control = control_in(tmp_path)
    environment = {
        "PATH": os.environ["PATH"],
        "GPUSAGE_MPS_CONTROL": str(control),
        "GPUSAGE_MPS_FOLDER": str(mps),
        "SLURM_JOB_ID": "7",
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
    }
    subprocess.run([folder / "gpusage_prolog.sh"], env=environment, check=True)
    assert "-d device=0 ceiling=none" in commands_sent(control)
    assert (mps / "granted" / "7.json").exists()
    python = subprocess.run([folder / "usage.sh", "python"], check=True, capture_output=True, text=True).stdout
    assert python.strip() == sys.executable  # a node that has it samples; the prolog calls what lies beside it
    make_edits(plan_removal(folder))
    assert list(folder.iterdir()) == []


def test_where_the_site_itself_names_those_scripts_they_are_not_wrapped(site: Site) -> None:
    folder = site.folder / "libexec"
    make_edits(plan_copies(folder))
    own = "".join(f"{script.key}={script.copy(folder)}\n" for script in SCRIPTS)
    site.slurm_conf.write_text(SLURM_CONF + own)
    make_edits(plan_installation(site))
    assert own in site.slurm_conf.read_text()
    assert not (site.folder / "gpusage_prolog.sh").exists()
