"""What the prolog tells slurmctld of a share that would start beside another user's: commands stand in for Slurm's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpusage_slurm.install.node_scripts import PROLOG

COMMAND = r"""#!/bin/sh
case "${0##*/} $*" in
    squeue*%t*) printf '%s\n' "$HERE" ;;
    squeue*%U*) printf '12 1001 %s gres:mps:50\n13 1002 n2 gres:mps:25\n14 1000 n3 gres:mps:25\n' "${STRANGER:-n1}" ;;
    squeue*%F*) echo "20|18|3|$HELD||$EXCLUDED|(v100|a100)&ib" ;;
    squeue*-O*) printf '20              %s   %s\n' "$REQUEUE" "$MARK" ;;
    sinfo*) for node in n1 n2 n3; do echo "$node v100,ib gpu:v100:4(S:0),mps:v100:400(S:0) 64 1000"; done ;;
    "scontrol show"*) printf '%s\n' ${SHOWN:-n2 n3} ;;
    *) echo "$*" >>"$(dirname "$0")/commands" ;;
esac
"""
START = "site; gpusage 0123456789ab REWRITE "
MARK = f"{START}gres/gpu:1 -> gres/mps:40, constraint (v100|a100)&ib | cheap; ok"
MET = "it would have started beside job 12 of another user on n1"


def commands_to(folder: Path, **environment: str) -> list[str]:
    """Return what slurmctld is told, where job 12 of another user has a part of the GPU."""
    for name in ("squeue", "sinfo", "scontrol"):
        (folder / name).write_text(COMMAND)
        (folder / name).chmod(0o755)
    users = folder / "mps" / "users" / "0"
    users.mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    (users / "12").write_text(f"1001 {boot}")
    job = {"SLURM_JOB_ID": "20", "SLURM_JOB_UID": "1000", "SLURM_JOB_PARTITION": "gpu", "SLURMD_NODENAME": "n1"}
    share = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
    own = {"PATH": f"{folder}:/usr/bin:/bin", "GPUSAGE_MPS_FOLDER": str(folder / "mps")}
    usual = {"MARK": MARK, "HELD": "gres/mps:40,gres/lic:1", "EXCLUDED": "", "REQUEUE": "1", "HERE": "12 SI"}
    subprocess.run(["sh", PROLOG.path], check=True, env=own | job | share | usual | environment)
    lines = folder / "commands"
    assert (folder / "mps" / "granted" / "20.back").exists() == lines.exists()  # the task prolog waits for its end
    return lines.read_text().splitlines() if lines.exists() else []


def test_it_avoids_the_nodes_of_strangers_and_keeps_what_its_user_wrote(tmp_path: Path) -> None:
    """Node n3 has a share of its own user; the job of an array is named by its task, for the array is not meant."""
    after = "REWRITE gres/gpu:1 -> gres/mps:40, apart n1,n2, start 2, constraint (v100|a100)&ib"
    assert commands_to(tmp_path, REQUEUE="0") == [
        f"update JobId=18_3 AdminComment=site; gpusage 0123456789ab {after} | {MET}; cheap; ok",
        "update JobId=18_3 Requeue=1",
        "requeue 18_3",
        "update JobId=18_3 ExcNodeList=n1,n2 StartTime=now+2 Requeue=0",
    ]


def test_a_stranger_on_several_nodes_keeps_it_off_each_of_them_and_off_no_other(tmp_path: Path) -> None:
    lines = commands_to(tmp_path, STRANGER="n[1-2]", SHOWN="n1 n2 n2")
    assert lines[-1] == "update JobId=18_3 ExcNodeList=n1,n2 StartTime=now+2 Requeue=1"


@pytest.mark.parametrize(("held", "gpu"), [("gres/mps:40,gres/lic:1", "gpu:1"), ("gres:mps:40,gres:lic:1", "mps:100")])
def test_its_fourth_start_is_on_a_whole_gpu_of_any_type(tmp_path: Path, held: str, gpu: str) -> None:
    """Up to 23.02 slurmctld changes no share into a GPU, and writes its requests in another form."""
    before = f"{START}gres/gpu:1 -> gres/mps:40, apart n3, start 4, constraint (v100|a100)&ib | cheap; ok"
    back = START.replace("REWRITE", "BACK")
    assert commands_to(tmp_path, HELD=held, MARK=before, SLURM_JOB_RESTART_COUNT="5") == [
        f"update JobId=18_3 AdminComment={back}gres/mps:40 -> gres/{gpu}, start 5 | {MET}; cheap; ok",
        "requeue 18_3",
        "update JobId=18_3 ExcNodeList= StartTime=now+10 Requeue=1",
        f"update JobId=18_3 Gres={gpu},lic:1 Features=ib",
    ]


def test_restarts_of_its_users_do_not_count(tmp_path: Path) -> None:
    assert "apart n1,n2, start 2, constraint" in commands_to(tmp_path, SLURM_JOB_RESTART_COUNT="6")[0]


def test_where_no_node_like_this_one_is_left_it_is_whole_at_once(tmp_path: Path) -> None:
    """The user excludes n3; n2, which gpusage had added, may run it again."""
    mark = MARK.replace("constraint (v100|a100)&ib", "avoid n2, prefer v100")
    assert commands_to(tmp_path, MARK=mark, EXCLUDED="n[2-3]")[-2:] == [
        "update JobId=18_3 ExcNodeList=n3 StartTime=now+10 Requeue=1",
        "update JobId=18_3 Gres=gpu:1,lic:1 Prefer=",
    ]


def test_a_node_that_its_user_excludes_stays_the_users(tmp_path: Path) -> None:
    """Where a stranger's share runs on it as well: n2."""
    assert ", apart n1, start 2, constraint" in (lines := commands_to(tmp_path, EXCLUDED="n2", SHOWN="n2"))[0]
    assert lines[-1] == "update JobId=18_3 ExcNodeList=n2,n1 StartTime=now+2 Requeue=1"


@pytest.mark.parametrize(
    "change",
    [
        {"GPUSAGE_ACROSS_USERS": "yes"},
        {"MARK": "gpusage 0123456789ab KEEP gres/mps:40 | it asks for mps itself"},
        {"HERE": "12 CD"},  # its epilog never came
        {"MARK": MARK.replace("constraint", "start 9, constraint")},  # slurmctld refuses what it needs
    ],
)
def test_a_job_that_is_not_ours_or_meets_nobody_starts(tmp_path: Path, change: dict[str, str]) -> None:
    assert commands_to(tmp_path, **change) == []
    assert (
        (tmp_path / "mps" / "users" / "0" / "20").read_text().startswith("1000 ")
    )  # so that the next stranger meets it
    assert (tmp_path / "mps" / "users" / "0" / "12").exists() == (change.get("HERE") != "12 CD")
