from pathlib import Path

import pytest

from gpusage_slurm.install.node_scripts import (
    EPILOG,
    PROLOG,
    SCRIPTS,
    TASK_PROLOG,
    missing_scripts,
    script_path,
    unenforced_partitions,
)

ALL = {script.key.lower(): str(script.path) for script in SCRIPTS}
PARTITIONS = ({"PartitionName": "gpu", "AllowGroups": "ALL"}, {"PartitionName": "debug", "AllowGroups": "ALL"})


def test_our_own_scripts_and_their_wrappers_are_known() -> None:
    assert missing_scripts(ALL) == ()
    assert missing_scripts({script.key.lower(): f"/etc/slurm/gpusage_{script.name}" for script in SCRIPTS}) == ()
    assert missing_scripts({**ALL, "prolog": "", "prolog[0]": "/site", "prolog[1]": str(PROLOG.path)}) == ()


def test_a_sites_own_script_in_a_folder_named_gpusage_is_not_ours() -> None:
    assert missing_scripts({**ALL, "prolog": "/opt/gpusage-site/prolog.sh"}) == (PROLOG,)
    assert missing_scripts({}) == (TASK_PROLOG, PROLOG, EPILOG)


def test_a_pattern_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "50-gpusage").touch()
    assert script_path({"prolog": f"{tmp_path}/*"}, PROLOG) == str(tmp_path / "50-gpusage")
    assert script_path({"prolog": f"{tmp_path}/none*"}, PROLOG) is None


@pytest.mark.parametrize("key", ["taskprolog", "prolog", "epilog"])
def test_without_one_of_them_no_partition_shares_its_gpus(key: str) -> None:
    actual = unenforced_partitions({**ALL, key: ""}, PARTITIONS)
    assert set(actual) == {"partition=gpu", "partition=debug"}
    assert "the nodes do not run gpusage's" in actual["partition=gpu"]
    assert unenforced_partitions(ALL, PARTITIONS) == {}


def test_no_gpu_is_shared_where_the_prolog_runs_inside_the_job() -> None:
    """The job's end would end the MPS daemon of the jobs beside it."""
    reasons = unenforced_partitions({**ALL, "prologflags": "Alloc,Contain,RunInJob"}, PARTITIONS)
    assert len(reasons) == len(PARTITIONS)
    assert all("PrologFlags=RunInJob" in reason for reason in reasons.values())
