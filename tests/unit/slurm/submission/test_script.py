"""A batch script's directives, and whether its job can be requeued unnoticed."""

from __future__ import annotations

import re

import pytest

from gpusage_hooks.types import DecisionRequest, GpuRequest
from gpusage_slurm.install.lua_scripts import LUA_FOLDER
from gpusage_slurm.submission.request import parse_submission, read_request
from gpusage_slurm.submission.script import PILOT_WORDS, read_directives, read_script

UNNAMED = ("qos=normal", "account=")
"""The scopes of a job that names neither."""


def script(*directives: str) -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in directives), "", "srun python train.py", ""])


@pytest.mark.parametrize(
    ("directive", "field", "value"),
    [
        ("--gres=gpu:1", "tres_per_node", "gres:gpu:1"),
        ("--gres gpu:v100:1,nvme:2", "tres_per_node", "gres:gpu:v100:1,gres:nvme:2"),
        ("--gres=gres/gpu:1", "tres_per_node", "gres/gpu:1"),
        ("--gpus=2", "tres_per_job", "gres:gpu:2"),
        ("-G 2", "tres_per_job", "gres:gpu:2"),
        ("-Gv100:2", "tres_per_job", "gres:gpu:v100:2"),
        ("--gpus-per-node=1", "tres_per_node", "gres:gpu:1"),
        ("--gpus-per-task=1", "tres_per_task", "gres:gpu:1"),
        ("--gpus-per-socket=1", "tres_per_socket", "gres:gpu:1"),
        ("--tres-per-task=cpu:2,gres/gpu:1", "tres_per_task", "cpu:2,gres/gpu:1"),
        ("--cpus-per-gpu=4", "cpus_per_tres", "gres:gpu:4"),
        ("--mem-per-gpu=4G", "mem_per_tres", "gres:gpu:4096"),
        ("-C 'intel&ib'", "features", "intel&ib"),
        ("--prefer=h100", "prefer", "h100"),
        ("-N 2-4", "max_nodes", "4"),
        ("--nodes=2", "min_nodes", "2"),
        ("-c 8", "cpus_per_task", "8"),
        ("--mem=32G", "min_mem_per_node", "32768"),
        ("--mem-per-cpu=1500K", "min_mem_per_cpu", "2"),
        ("--mem=4g", "min_mem_per_node", "4096"),
        ("--mem=0", "min_mem_per_node", "0"),  # all memory of the node
        ("--mem=0G", "min_mem_per_node", "0"),
        ("--mem=1.5G", "min_mem_per_node", ""),
        ("--mem=5.", "min_mem_per_node", ""),
        ("--mem=1P", "min_mem_per_node", ""),
        ("--mem=999999999", "min_mem_per_node", "999999999"),
        ("--mem=1234567890", "min_mem_per_node", ""),
        ("--mem=99999999999999G", "min_mem_per_node", ""),
        ("--mem=lots", "min_mem_per_node", ""),
        ("--tmp=10G", "pn_min_tmp_disk", "10G"),
        ("-n4", "num_tasks", "4"),
        ("--ntasks-per-node=4", "num_tasks", "4"),
        ("-N 2 --ntasks-per-node=4", "num_tasks", "8"),
        ("-n1 --ntasks-per-node=4", "num_tasks", "1"),
        ("--exclusive", "shared", "0"),
        ('--comment="project=x; gpusage: model=r.onnx" # why', "comment", "project=x; gpusage: model=r.onnx"),
        ("--job-name=x -p gpu", "partition", "gpu"),
        ("-w n[1-2]", "req_nodes", "n[1-2]"),
        ("--exclude=n3", "exc_nodes", "n3"),
    ],
)
def test_a_directive_sets_the_field_that_job_submit_would_see(directive: str, field: str, value: str) -> None:
    assert read_script(script(directive))[field] == value


def test_a_number_that_no_job_has_is_left_to_slurm() -> None:
    assert "num_tasks" not in read_script(script(f"--ntasks-per-node={'9' * 5000}"))


def test_a_later_directive_wins() -> None:
    assert read_request(read_script(script("--gres=gpu:4", "--gres=gpu:1"))) == GpuRequest(gpu_count=1, scopes=UNNAMED)


def test_directives_end_where_the_commands_begin() -> None:
    assert read_script("#!/bin/sh\n\n# words\n#SBATCH -n 2\necho\n#SBATCH --gres=gpu:1\n") == {
        "script": "1",
        "het": "0",
        "script_options": "",
        "unrepeatable": "",
        "script_comment": "",
        "shows_model": "1",
        "num_tasks": "2",
    }


def test_a_line_that_only_looks_like_a_directive_is_a_comment() -> None:
    assert list(read_directives("##SBATCH --gres=gpu:1\n# SBATCH --gres=gpu:1\n #SBATCH --gres=gpu:1\n")) == []


def test_exclusive_for_a_user_still_shares_the_node() -> None:
    assert "shared" not in read_script(script("--exclusive=user"))


def test_a_heterogeneous_job_is_known_by_its_separator() -> None:
    assert read_script(script("--gres=gpu:1", "hetjob", "-n 2"))["het"] == "1"


def test_gres_none_asks_for_nothing() -> None:
    assert read_request(read_script(script("--gres=none"))).gpu_count == 0


def test_an_open_quote_is_left_to_sbatch() -> None:
    assert read_script(script('--gres=gpu:1 --comment="x'))["tres_per_node"] == "gres:gpu:1"


def test_a_script_is_a_submission_and_fields_given_beside_it_win() -> None:
    text = script("--gpus=1", "--comment=model=r.onnx,batch=4")
    job = parse_submission(
        DecisionRequest(manager="slurm", fields={"partition": "gpu"}, script=text, origin="train.sh")
    )
    assert job is not None
    assert job.request == GpuRequest(gpu_count=1, partitions=("gpu",), scopes=UNNAMED)
    assert job.model_request is not None
    assert job.submission.fields["partition"] == "gpu"
    assert job.submission.origin == "train.sh"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun --gpus=1 --cpus-per-gpu=4 python x", "cpus-per-gpu"),
        ("export SLURM_CPUS_PER_GPU=4", "cpus-per-gpu"),
        ("srun --gpus=1 --mem-per-gpu=4G --cpus-per-task=2 python x", ""),
        ("x" * 262_144, "unread"),
    ],
)
def test_srun_lines_that_a_share_could_not_carry_are_found_as_job_submit_finds_them(line: str, expected: str) -> None:
    assert read_script(f"#!/bin/sh\n{line}\n")["script_options"] == expected


def test_lines_of_our_own_end_where_the_commands_begin() -> None:
    lines = ("#!/bin/sh", "#GPUSAGE model=a.onnx,batch=8,", "#SBATCH -n 1", "#GPUSAGE", "#GPUSAGE mode=infer ", "true")
    text = "\n".join((*lines, "#GPUSAGE batch=9\n"))
    assert read_script(text)["script_comment"] == "model=a.onnx,batch=8,mode=infer"


def test_gpusage_lua_looks_for_the_same_words() -> None:
    listed = re.search(r"local PILOT_WORDS = \{(.*?)\}", (LUA_FOLDER / "gpusage_request.lua").read_text(), re.DOTALL)
    assert listed is not None
    assert tuple(re.findall(r'"(.*?)"', listed[1])) == PILOT_WORDS


@pytest.mark.parametrize(
    ("script", "is_repeatable"),
    [
        ("#SBATCH --gres=gpu:1\npython train.py\n", True),
        ("#SBATCH --gres=gpu:1 --no-requeue\npython train.py\n", False),
        ("#SBATCH --gres=gpu:1 --no-requeue\n#SBATCH --requeue\npython train.py\n", True),
        ("#SBATCH --gres=gpu:1 -o /dev/null\npython train.py\n", False),
        ("#SBATCH --gres=gpu:1 -o /dev/null -e errors\npython train.py\n", True),
        ("#SBATCH --gres=gpu:1\npython -u -m submitit.core._submit /home/ada/log\n", False),
    ],
)
def test_a_script_tells_whether_it_may_run_again_unseen(script: str, is_repeatable: object) -> None:
    assert read_request(read_script("#!/bin/sh\n" + script)).repeatable is is_repeatable
