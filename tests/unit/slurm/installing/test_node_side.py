from pathlib import Path

import pytest

from gpusage_slurm.installing.node_side import EPILOG, PROLOG, SCRIPTS, TASK_PROLOG, missing, named, unshared

ALL = {script.key.lower(): str(script.path) for script in SCRIPTS}
PARTITIONS = ({"PartitionName": "gpu", "AllowGroups": "ALL"}, {"PartitionName": "debug", "AllowGroups": "ALL"})


def test_our_own_scripts_and_their_wrappers_are_known() -> None:
    assert missing(ALL) == ()
    assert missing({script.key.lower(): f"/etc/slurm/gpusage_{script.name}" for script in SCRIPTS}) == ()
    assert missing({**ALL, "prolog": "", "prolog[0]": "/site", "prolog[1]": str(PROLOG.path)}) == ()


def test_a_sites_own_script_in_a_folder_named_gpusage_is_not_ours() -> None:
    assert missing({**ALL, "prolog": "/opt/gpusage-site/prolog.sh"}) == (PROLOG,)
    assert missing({}) == (TASK_PROLOG, PROLOG, EPILOG)


def test_a_pattern_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "50-gpusage").touch()
    assert named({"prolog": f"{tmp_path}/*"}, PROLOG) == str(tmp_path / "50-gpusage")
    assert named({"prolog": f"{tmp_path}/none*"}, PROLOG) is None


@pytest.mark.parametrize("key", ["taskprolog", "prolog", "epilog"])
def test_without_one_of_them_no_partition_shares_its_gpus(key: str) -> None:
    found = unshared({**ALL, key: ""}, PARTITIONS)
    assert set(found) == {"partition=gpu", "partition=debug"}
    assert "the nodes do not run gpusage's" in found["partition=gpu"]
    assert unshared(ALL, PARTITIONS) == {}


def test_no_gpu_is_shared_where_the_prolog_runs_inside_the_job() -> None:
    """The job's end would end the MPS daemon of the jobs beside it."""
    reasons = unshared({**ALL, "prologflags": "Alloc,Contain,RunInJob"}, PARTITIONS)
    assert len(reasons) == len(PARTITIONS)
    assert all("PrologFlags=RunInJob" in reason for reason in reasons.values())
