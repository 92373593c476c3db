"""The Python program in a command line or a job script."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpusage.capture.inside.scratch_files import overlaid
from gpusage.capture.programs import is_job_script, program_of, programs_in_script
from gpusage.cli.capture import _read_programs
from gpusage_hooks.errors import RequestError


@pytest.mark.parametrize(
    ("line", "python", "words", "gpu_count"),
    [
        ("python train.py --lr 1", "python", "train.py --lr 1", 1),
        ("/env/bin/python3.11 -u -W ignore -m pkg.train -x", "/env/bin/python3.11 -u -W ignore", "-m pkg.train -x", 1),
        ("srun -n 1 --label time python train.py", "python", "train.py", 1),
        ("torchrun --standalone --nproc_per_node=4 train.py a", "python", "train.py a", 4),
        ("torchrun --nnodes 1 --nproc-per-node 2 -m pkg.train", "python", "-m pkg.train", 2),
        ("python3 -m torch.distributed.run --nproc_per_node 8 train.py", "python3", "train.py", 8),
        (
            "deepspeed --num_gpus 4 train.py --deepspeed_config ds.json",
            "python",
            "train.py --deepspeed_config ds.json",
            4,
        ),
        ("deepspeed --bind_cores_to_rank train.py configs/x.yml", "python", "train.py configs/x.yml", 1),
        ("deepspeed --elastic_training --num_gpus 2 train.py", "python", "train.py", 2),
        ("deepspeed --a_new_switch train.py configs/x.yml", "python", "train.py configs/x.yml", 1),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py", "python", "train.py", 16),
        ("deepspeed --include localhost:0,1 train.py", "python", "train.py", 2),
        ("deepspeed --include=a:0,1@b:0,1,2 train.py", "python", "train.py", 5),
        ("deepspeed --no_python --num_gpus 2 python -u train.py a", "python -u", "train.py a", 2),
        ("torchrun --nnodes=2 --nproc-per-node=4 --no-python python train.py", "python", "train.py", 8),
        ("torchrun --nnodes= --nproc-per-node=4 train.py", "python", "train.py", 4),
        ("accelerate launch --multi_gpu --num_processes 2 train.py", "python", "train.py", 2),
        ("accelerate launch --mixed_precision bf16 train.py", "python", "train.py", 1),
    ],
)
def test_the_program_is_behind_its_launchers(line: str, python: str, words: str, gpu_count: int) -> None:
    program = program_of(shlex.split(line))
    assert shlex.join(program.python) == python
    assert shlex.join(program.words) == words
    assert program.gpu_count == gpu_count


@pytest.mark.parametrize(
    "line",
    [
        *("bash run.sh", "python", "srun python -c 1", "python -m", "torchrun --nproc_per_node 2", "env python - x.py"),
        *("python -m torch.distributed.run --nproc_per_node 2", "srun python3 -m accelerate.commands.launch -m"),
    ],
)
def test_what_runs_no_program_is_refused_in_the_users_own_words(line: str) -> None:
    with pytest.raises(RequestError, match=f"must run a Python program, as 'python train.py'; got '{re.escape(line)}'"):
        program_of(shlex.split(line))


@pytest.mark.parametrize("line", ["conda run -n env python train.py", "srun apptainer exec image.sif python train.py"])
def test_another_environment_is_to_be_entered_first(line: str) -> None:
    with pytest.raises(RequestError, match=r"must run Python of this environment; got '(conda|apptainer)'"):
        program_of(shlex.split(line))


def test_a_job_script_sets_variables_and_the_folder_of_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_BATCH", "64")
    (program,) = programs_in_script(
        "#!/bin/bash\n#SBATCH --gres=gpu:1\nmodule load cuda\nexport DATA=/data LR=0.1\ncd models\n"
        "srun python train.py \\\n  --batch ${USER_BATCH} --data $DATA/set --seed ${SEED:-7} --name x$NONE > log 2>&1\n"
        "echo done\n"
    )
    assert program.words == ("train.py", "--batch", "64", "--data", "/data/set", "--seed", "7", "--name", "x")
    assert program.variables == {"DATA": "/data", "LR": "0.1"}
    assert program.folder == "models"


def test_of_several_programs_each_has_the_variables_and_the_folder_above_it() -> None:
    prepare, train = programs_in_script("python prepare.py\ncd x\nOMP_NUM_THREADS=4 python train.py | tee log\n")
    assert (prepare.words, prepare.variables, prepare.folder) == (("prepare.py",), {}, ".")
    assert (train.words, train.variables, train.folder) == (("train.py",), {"OMP_NUM_THREADS": "4"}, "x")


def test_a_job_script_has_arguments_of_its_own() -> None:
    (program,) = programs_in_script('python train.py --lr "$1" --name ${2:-x} "$@"', ["0.1", "a b"])
    assert program.words == ("train.py", "--lr", "0.1", "--name", "a b", "0.1", "a b")


@pytest.mark.parametrize(
    "head",
    [
        "#!/env/bin/python3.11 -E\n",
        "#!/usr/bin/env python3\n",
        "#!/usr/bin/env -S python3 -u\n",
        "#!/bin/sh\n'''exec' \"/a folder/python3\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_a_command_that_python_runs_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    """As pip writes them, with a shell's line where the path has a blank."""
    command = tmp_path / "yolo"
    command.write_text(f"{head}print()\n")
    command.chmod(0o755)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    expected = (str(command), "train", "data=a.yaml")
    monkeypatch.chdir(tmp_path)
    for line in (f"srun {command} train data=a.yaml", "./yolo train data=a.yaml"):
        program = program_of(shlex.split(line))
        assert Path(program.python[0]).name.startswith("python3")
        assert program.words == expected
    (program,) = programs_in_script(f"export PATH={tmp_path}:$PATH\nyolo train data=a.yaml\n")
    assert program.words == expected
    assert [is_job_script(each) for each in ("./yolo", "run.sh", "none")] == [False, True, False]


def test_a_launcher_s_python_lies_beside_it() -> None:
    assert program_of(["/env/bin/torchrun", "train.py"]).python == ("/env/bin/python",)


def test_words_that_a_shell_works_out_are_refused() -> None:
    with pytest.raises(RequestError, match="must have words that need no shell"):
        programs_in_script("python train.py --port $(free_port)\n")


def test_a_script_without_a_program_is_refused() -> None:
    with pytest.raises(RequestError, match="must have a line that runs a Python program"):
        programs_in_script("#!/bin/bash\n# python train.py\necho 'an open quotation\n")


def test_a_folder_with_a_mount_in_it_has_no_overlay() -> None:
    folders = [Path(each) for each in ("/work/run", "/home/u", "/scratch", "/home/u/project", "/data", "/scratch")]
    assert overlaid(folders, [Path("/"), Path("/proc"), Path("/data/a")]) == [
        Path("/work/run"),
        Path("/home/u"),
        Path("/scratch"),
    ]


def test_a_program_without_its_python_runs_by_the_usual_one() -> None:
    (program,) = _read_programs(("train.py", "--lr", "0.1"), None)
    assert (program.python, program.words) == (("python",), ("train.py", "--lr", "0.1"))
