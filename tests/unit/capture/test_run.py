"""`gpusage capture`, as a user runs it: real processes, and an overlay where the kernel lets its users have one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpusage.capture.inside import scratch_files
from gpusage.cli.capture import MAXIMUM_CARDS
from gpusage_hooks.comment import parse_comment
from recorded_runs import write_run

SCRIPTS = Path(__file__).parent / "scripts"
TRY = "echo x > here; echo x > kept; rm -r folder; mkdir folder; umount . ; cat kept folder/* 2>/dev/null; "
TRY += "touch /usr/touched 2>&1 | grep -o 'Read-only'; exit 7"


def run_in_overlay(folder: Path, program: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run *program* in *folder* with an overlay on it; skip the test where this kernel lets its users have none."""
    words = {"is_apart": True, "has_network": False, "cpu_limit_s": 60, "folders": [str(folder)], "variables": {}}
    command = [sys.executable, "-I", scratch_files.__file__, json.dumps({**words, **options}), *program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == scratch_files.NO_SCRATCH_STATUS:
        pytest.skip(f"users may have no overlay here: {done.stderr}")
    return done


def command_lines() -> set[str]:
    """Return the command lines of this host's processes."""
    lines = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            lines.add(path.read_text(errors="replace").replace("\0", " ").strip())
    return lines


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``gpusage capture`` in *folder*, with time for a loaded machine."""
    command = [sys.executable, "-m", "gpusage.cli", "capture", "--time", "400s", *words]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run_and_submit(folder: Path, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Capture and submit a job of *program* where ``sbatch`` says what it was given."""
    (folder / "sbatch").write_text('#!/bin/sh\necho "submitted $* with $GPUSAGE_COMMENT"\n')
    (folder / "sbatch").chmod(0o755)
    (folder / "job.sbatch").write_text(f"#!/bin/sh\n#SBATCH --gres=gpu:1\n{sys.executable} {SCRIPTS / program}\n")
    paths = {"PATH": f"{folder}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder / "cache")}
    return run(folder, "--run-here", "--submit", "job.sbatch", *arguments, **paths, **variables)


def test_what_a_program_writes_stays_in_memory(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "one").write_text("one")
    done = run_in_overlay(tmp_path, ["sh", "-c", TRY])
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["x", "Read-only"]
    assert {each.name for each in tmp_path.iterdir()} == {"kept", "folder"}
    assert (tmp_path / "kept").read_text() == "mine"
    assert (tmp_path / "folder" / "one").read_text() == "one"


def test_a_program_has_no_network_but_its_own_host(tmp_path: Path) -> None:
    text = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); "
    text += "print(socket.if_nameindex())"
    assert run_in_overlay(tmp_path, [sys.executable, "-c", text]).stdout.strip() == "[(1, 'lo')]"


def test_a_program_shares_no_memory_with_others_and_leaves_no_folder(tmp_path: Path) -> None:
    before = set(Path("/tmp").iterdir())
    shown = run_in_overlay(tmp_path, ["readlink", "/proc/self/ns/ipc"]).stdout.strip()
    assert shown.startswith("ipc:")
    assert shown != str(Path("/proc/self/ns/ipc").readlink())
    assert not [each for each in set(Path("/tmp").iterdir()) - before if "capture" in each.name]


def test_nothing_that_a_program_starts_outlives_it(tmp_path: Path) -> None:
    name = f"sleep 4711.{os.getpid()}"
    assert run_in_overlay(tmp_path, ["sh", "-c", f"setsid {name} > /dev/null 2>&1 & echo begun"]).stdout == "begun\n"
    assert name not in command_lines()


def test_a_program_has_no_more_rights_than_its_user(tmp_path: Path) -> None:
    shown = run_in_overlay(tmp_path, ["cat", "/proc/self/status"]).stdout
    assert "CapEff:\t0000000000000000" in shown
    assert f"Uid:\t{os.getuid()}\t" in shown


def test_no_file_of_the_program_s_folder_runs_before_what_it_writes_is_kept_apart(tmp_path: Path) -> None:
    """A module of the standard library's name, and one that each Python imports at its start."""
    for name in ("json", "ctypes", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"open('/proc/self/cwd/{name}-ran', 'w').close()\n")
    (tmp_path / "train.py").write_text("print('ran')\n")
    gpusage = Path(sys.executable).with_name("gpusage")  # unlike python -m, it has no module of the folder itself
    command = [gpusage, "capture", "--shell", f"PYTHONPATH={tmp_path} {sys.executable} train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "does not let users have" in done.stderr:
        pytest.skip("users may have no overlay here")
    assert not list(tmp_path.glob("*-ran"))


@pytest.mark.long
@pytest.mark.torch
def test_a_program_finds_a_terminal_at_its_end_where_it_reads(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = "import os\ntry: input()\nexcept EOFError: open('size', 'w').write(str(os.get_terminal_size(0)[:]))"
    (tmp_path / "reads.py").write_text(text)
    run(tmp_path, "--run-here", "--", sys.executable, "reads.py")
    assert (tmp_path / "size").read_text() == "(80, 24)"


@pytest.mark.long
@pytest.mark.torch
def test_a_program_runs_where_there_is_no_terminal(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    hidden = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs none /dev/pts && "$@"', "sh"]
    if subprocess.run([*hidden, "true"], check=False).returncode:
        pytest.skip("users may mount nothing here")
    command = shlex.split("-m gpusage.cli capture --run-here --time 400s -o a.card.json --")
    done = subprocess.run(
        [*hidden, sys.executable, *command, sys.executable, str(SCRIPTS / "plain.py")], cwd=tmp_path, check=False
    )
    assert done.returncode == 0


@pytest.mark.torch
def test_a_job_script_becomes_a_card_and_a_comment(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(SCRIPTS / "plain.py", tmp_path)
    run_in_overlay(tmp_path, ["true"])
    (tmp_path / "job.sbatch").write_text(f"#!/bin/sh\nLOG=written\nsrun {sys.executable} plain.py $LOG\n")
    done = run(tmp_path, "-o", "plain.card.json", "job.sbatch")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "written").exists()
    assert (tmp_path / "plain.card.json").exists()
    *table, card, comment = done.stdout.splitlines()
    assert table[0].startswith("Sequential with 1.47 k parameters; it ended after one full step")
    assert [line.split()[:3] for line in table[2:]] == [
        ["batch", "32", "seen"],
        ["mode", "train", "seen"],
        ["precision", "fp32", "seen"],
        ["optimizer", "momentum", "seen"],
    ]
    assert card == "Card: plain.card.json"
    assert comment == "--comment=model=plain.card.json,batch=32,mode=train,precision=fp32,optimizer=momentum"


@pytest.mark.long
@pytest.mark.torch
def test_a_card_whose_name_has_spaces_and_commas_has_a_comment_for_the_shell(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(
        tmp_path, "--run-here", "-o", "my card, Ada's; new.card.json", "--", sys.executable, str(SCRIPTS / "plain.py")
    )
    assert done.returncode == 0, done.stderr
    (word,) = shlex.split(done.stdout.splitlines()[-1])
    request = parse_comment(word.removeprefix("--comment="))
    assert request is not None
    assert (tmp_path / request.model).exists()
    assert request.workload.batch_size == 32


@pytest.mark.long
@pytest.mark.torch
def test_without_an_overlay_what_a_program_writes_is_real(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(tmp_path, "--run-here", "--json", "--", sys.executable, str(SCRIPTS / "plain.py"), "written")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "written").read_text() == "begun"
    shown = json.loads(done.stdout)
    assert shown["keys"]["batch"] == {"value": "32", "known": "seen"}
    assert shown["modules"] == [{"name": "Sequential", "parameter_count": 1474}]
    assert shown["card"]


@pytest.mark.long
@pytest.mark.torch
def test_a_card_without_a_place_lies_in_the_users_cache_and_a_number_that_the_user_gives_is_not_seen(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "gpusage" / "captured"
    folder.mkdir(parents=True)
    for age in range(MAXIMUM_CARDS + 2):
        (folder / f"{age}.card.json").touch()
        os.utime(folder / f"{age}.card.json", (1e9 - age, 1e9 - age))
    words = ("--run-here", "--gpus", "4", "--", sys.executable, str(SCRIPTS / "plain.py"))
    done = run(tmp_path, *words, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (card,) = folder.glob("Sequential-*.card.json")
    newest = {card.name, *(f"{age}.card.json" for age in range(MAXIMUM_CARDS - 1))}
    assert {each.name for each in folder.iterdir()} == newest
    *table, place, comment = done.stdout.splitlines()
    assert [line.split()[:3] for line in table[-2:]] == [["gpus", "4", "given"], ["strategy", "ddp", "guessed:"]]
    assert place == f"Card: {card}"
    assert comment.startswith(f"--comment=model={card},batch=32,")


@pytest.mark.torch
def test_a_job_is_submitted_with_what_was_seen(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run_and_submit(tmp_path, "plain.py")
    assert done.returncode == 0, done.stderr
    (card,) = (tmp_path / "cache" / "gpusage" / "captured").glob("Sequential-*.card.json")
    keys = "batch=32,mode=train,precision=fp32,optimizer=momentum"
    assert done.stdout.splitlines()[-1] == f"submitted job.sbatch with model={card},{keys}"


@pytest.mark.long
@pytest.mark.torch
def test_of_the_programs_of_a_script_the_last_one_with_a_model_is_submitted_with_the_arguments(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = f"inference.py\n{sys.executable} $1\n{sys.executable} -m json.tool"
    done = run_and_submit(tmp_path, program, str(SCRIPTS / "plain.py"))
    assert done.returncode == 0, done.stderr
    (card,) = (tmp_path / "cache" / "gpusage" / "captured").glob("Sequential-*.card.json")
    keys = "batch=32,mode=train,precision=fp32,optimizer=momentum"
    assert done.stdout.splitlines()[-1] == f"submitted job.sbatch {SCRIPTS / 'plain.py'} with model={card},{keys}"


@pytest.mark.long
@pytest.mark.torch
def test_a_job_is_submitted_with_the_words_of_its_user(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run_and_submit(tmp_path, "plain.py", GPUSAGE_COMMENT="model=mine.onnx")
    assert done.stdout.splitlines()[-1] == "submitted job.sbatch with model=mine.onnx"


@pytest.mark.torch
def test_a_job_s_run_becomes_a_card_outside_the_job(tmp_path: Path) -> None:
    """Not if its program has another batch here than any tensor had there."""
    pytest.importorskip("torch")
    runs = tmp_path / "cache" / "gpusage" / "runs"
    for number, size in ((7, 32), (8, 5)):
        calls = [{"shapes": [[[size, 20], "torch.float32"]]}]
        path = write_run(runs / f"script{number}", str(number), SCRIPTS / "plain.py", calls=calls)
        path.write_text(path.read_text().replace('"python"', f'"{sys.executable}"'))
    done, refused, absent = (
        run(tmp_path, "--run-here", "--from-run", job, XDG_CACHE_HOME=str(tmp_path / "cache")) for job in "789"
    )
    assert done.returncode == 0, done.stderr
    assert (runs / "script7" / "model.card.json").exists()
    assert json.loads((runs / "script7" / "captured").read_text())["keys"]["batch"] == ["32", "seen"]
    assert "must have the batch that it had there; got 32" in refused.stderr
    assert not (runs / "script8" / "model.card.json").exists()
    assert "Job '9' must have shown its run" in absent.stderr


@pytest.mark.torch
def test_no_job_is_submitted_with_a_guess(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run_and_submit(tmp_path, "inference.py")
    assert done.returncode == 1
    assert "must be seen; got a guess of mode. Check it" in done.stderr
    assert "submitted job" not in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--submit", "--", "python", "a.py"], "Job of --submit must be one job script; got 'python a.py'"),
        (["--submit", "nowhere.sbatch"], "Host of --submit must be able to submit job scripts; got 'sbatch'"),
        ([], "Capture must have one program"),
        (["--shell", "python a.py", "--", "python", "a.py"], "Capture must have one program"),
        (["--", "bash", "train.sh"], "Command of 'gpusage capture' must run a Python program"),
        (["-o", "card.json", "--", "python", "a.py"], "Output 'card.json' must end with '.card.json'"),
        (
            ["-o", "a'b\"c.card.json", "--", "python", "a.py"],
            "got one with both kinds of quotes. Name a card elsewhere",
        ),
        (["--shell", "cd nowhere; python a.py"], "must be there for the program to run in; got none"),
        (["nowhere.sbatch"], "Script 'nowhere.sbatch' must be a readable file"),
        (["binary.sbatch"], "got a script with none. For a program, write 'gpusage capture -- python train.py'."),
    ],
)
def test_what_cannot_be_captured_is_refused_in_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "binary.sbatch").write_text("#!/bin/sh\nsrun ./binary\n")
    done = run(tmp_path, *words)
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_python_without_pytorch_is_named_with_what_installs_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None")
    # What a user sets for the program counts for it alone, so that this Python finds no torch.
    done = run(tmp_path, "--run-here", "--shell", f"PYTHONPATH={tmp_path} {sys.executable} train.py")
    assert done.returncode == 1
    assert "got: not installed. Activate its environment, or install gpusage with its extra [torch]" in done.stderr


def test_a_program_that_calls_no_model_in_time_is_ended(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)\n")
    done = run(tmp_path, "--run-here", "--time", "1s", "--", sys.executable, "sleeps.py")
    assert done.returncode == 1
    assert "Program must call a model within its limits; got its time first. Give it more with --time." in done.stderr
