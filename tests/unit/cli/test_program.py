"""The main group: which command is loaded when, and what a failure looks like."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage.cli.program import BUILT_IN, LazyGroup, exit_status
from gpusage.plugins import loading
from sites import announced

ROOT = Path(__file__).parents[3]

GPUSAGE = [sys.executable, "-m", "gpusage.cli"]


@pytest.mark.parametrize("name", [*sorted(BUILT_IN), "evaluate", "plan", "profile", "simulate", "train"])
def test_every_command_of_ours_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert f"gpusage {name} " in result.stdout.partition("Example")[2]


@pytest.mark.parametrize("name", ["predict", "colocate", "validate", "card", "gpus"])
def test_the_examples_in_help_run_when_pasted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with a daemon are left out; what answers with status 1 would show an error."""
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    for script in ("train.sbatch", "serve.sbatch"):
        Path(script).write_text("#!/bin/bash\n#SBATCH --gres=gpu:1 --comment=model=examples/models/unet.onnx\n")
    help_text = CliRunner().invoke(main, [name, "--help"], terminal_width=200).stdout
    lines = [line.split() for line in help_text.partition("Example")[2].splitlines()[1:] if line.strip()]
    ran = 0
    for words in lines:
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
        elif "status" not in words:
            result = CliRunner().invoke(main, words[1:])
            assert result.exit_code == 0, (words, result.stderr)
            ran += 1
    assert ran


def test_help_lists_built_in_and_plugin_commands() -> None:
    listed = CliRunner().invoke(main, ["--help"]).stdout
    assert all(f"  {name} " in listed for name in ("predict", "colocate", "validate", "card", "gpus", "slurm"))
    assert "job-card" not in listed  # hidden: the login node calls it


def test_no_arguments_show_the_help() -> None:
    result = CliRunner().invoke(main, [])
    assert "Usage: gpusage" in result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["predictt"],
            "Command 'predictt' must be a command of gpusage; there is none of this name. Did you mean 'predict'?",
        ),
        (["predict"], "Missing argument 'MODEL...'. Try 'gpusage predict --help'."),
        (
            ["predict", "m.onnx", "--shape", "3x4"],
            "Key 'shape' must name sizes from 1 to 10^9, joined by 'x'; got '3x4'.",
        ),
        (["colocate", "m.onnx", "--gpu", "a100"], "Models must be at least 2, they share one GPU; got 1."),
        (["colocate", "m.onnx", "n.onnx"], "Missing option '--gpu'."),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_status_2(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"gpusage: error: {sentence}")
    assert result.stderr.count("\n") == 1


def test_a_wrong_input_is_one_sentence_and_status_1() -> None:
    result = CliRunner().invoke(main, ["predict", "absent.onnx"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("gpusage: error: ")
    assert "absent.onnx" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "code"), [(["predict", "absent.onnx"], "model"), (["predict"], "usage")])
def test_with_json_a_failure_is_one_document_too(words: list[str], code: str) -> None:
    result = CliRunner().invoke(main, [*words, "--json"])
    error = json.loads(result.stdout)["error"]
    assert error["code"] == code
    assert result.stderr == f"gpusage: error: {error['message']}\n"


@pytest.mark.parametrize("error", [KeyError("absent"), EOFError("marshal data too short")])
def test_our_own_bug_is_status_70_with_a_traceback_and_where_to_report_it(error: Exception) -> None:
    """An EOFError is no Ctrl-D: a full disk may have cut a library short."""

    @click.command()
    def broken() -> None:
        raise error

    result = CliRunner().invoke(_GroupOf(broken), ["broken"])
    assert result.exit_code == 70
    assert "Traceback" in result.stderr
    assert "please report it" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", sorted({command.signature.partition(":")[0] for command in BUILT_IN.values()}))
def test_help_of_a_command_loads_nothing_of_what_the_command_does(name: str) -> None:
    """What an import at the top of a module costs, every `gpusage --help` pays."""
    code = f"import sys; import {name}; print(*sorted(sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    )
    assert not loaded & {
        "torch",
        "onnx",
        "rich",
        "numpy",
        "gpusage_slurm",
        "gpusage.decisions.advisor",
    }


def test_a_closed_pipe_ends_the_command_without_a_word() -> None:
    with subprocess.Popen([*GPUSAGE, "gpus", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*GPUSAGE, "gpus", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert result.stderr.startswith("gpusage: error: Output must be written in full")
    assert result.stderr.count("\n") == 1


def test_a_broken_plugin_is_mentioned_and_hides_no_command(install: Callable[[EntryPoint], None]) -> None:
    install(announced(add_comands=lambda: None))  # a typo in a site's plugin
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "  predict " in result.stdout
    assert result.stderr.startswith("gpusage: warning: Plugin 'site' must keep to API 1: 'add_comands' must")
    assert result.stderr.count("\n") == 1


def test_a_plugins_command_stands_beside_ours_and_replaces_none(install: Callable[[EntryPoint], None]) -> None:
    commands = [click.Command("quota", callback=lambda: click.echo("42")), click.Command("gpus")]
    install(announced(add_commands=lambda: commands))
    assert CliRunner().invoke(main, ["quota"]).stdout == "42\n"
    assert "[NAME]..." in CliRunner().invoke(main, ["gpus", "--help"]).stdout
    assert CliRunner().invoke(main, ["--help"]).stdout.count("\n  gpus ") == 1


def test_groups_of_one_name_become_one_and_the_first_answer_wins(
    install: Callable[[EntryPoint], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = click.Group("pbs", {"status": _echo("ours"), "doctor": _echo("fine")}, help="PBS.")
    added = click.Group("pbs", {"status": _echo("theirs"), "sandbox": _echo("up")})
    plugins = [announced("ours", add_commands=lambda: [described]), announced("theirs", add_commands=lambda: [added])]
    install(plugins[0])
    monkeypatch.setattr(loading, "installed_entry_points", lambda group: plugins)  # pluggy asks the last one first
    assert CliRunner().invoke(main, ["pbs", "status"]).stdout == "theirs\n"
    assert [CliRunner().invoke(main, ["pbs", name]).stdout for name in ("doctor", "sandbox")] == ["fine\n", "up\n"]
    assert "PBS." in CliRunner().invoke(main, ["pbs", "--help"]).stdout


def _echo(text: str) -> click.Command:
    return click.Command(None, callback=lambda: click.echo(text))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("plan --jobs j.csv", "plan"),
        ("simulate", "simulate"),
        ("evaluate", "evaluate"),
        ("pbs sandbox up", "pbs sandbox"),
    ],
)
def test_a_command_whose_wheel_is_missing_says_which_one_to_install(
    words: str, command: str, install: Callable[[EntryPoint], None]
) -> None:
    install(announced(add_commands=lambda: [click.Group("pbs", {"status": click.Command("status")})]))
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 2
    assert result.stderr == (
        f"gpusage: error: Command '{command}' must come from gpusage-desk, which is not installed. "
        f"Install gpusage_desk-{version('gpusage')}-py3-none-any.whl beside gpusage.\n"
    )


def test_interrupt_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    """A FIFO that nobody writes to keeps the command busy; that it opens for writing tells that it is being read."""
    script = tmp_path / "train.sbatch"
    os.mkfifo(script)
    command = ["env", "--default-signal=INT", *GPUSAGE, "validate", str(script)]  # whoever runs the tests may ignore it
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        writer = os.open(script, os.O_WRONLY)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().strip() == ""
        assert process.wait() == 130
        os.close(writer)


class _GroupOf(LazyGroup):
    """Knows one command only."""

    def __init__(self, command: click.Command) -> None:
        super().__init__(name="gpusage")
        self.only = command

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.only if cmd_name == self.only.name else super().get_command(ctx, cmd_name)


def test_a_library_of_an_extra_that_is_not_installed_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        message = "No module named 'requests'"
        raise ModuleNotFoundError(message, name="requests")

    assert exit_status(command, []) == 1
    assert "Install gpusage with its extra [yarn]." in capsys.readouterr().err


EVALUATE = ("evaluate", "--data", ".")
PLAN = ("plan", "--jobs", "examples/plan/jobs.csv", "--cluster", "examples/plan/cluster.toml")


@pytest.mark.parametrize(
    ("arguments", "library", "extra"),
    [
        (EVALUATE, "sklearn", "train"),
        (EVALUATE, "scipy", "train"),
        (EVALUATE, "pandas", "train"),
        (PLAN, "scipy", "plan"),
    ],
)
def test_a_command_without_the_libraries_of_its_extra_says_which_one(
    arguments: tuple[str, ...], library: str, extra: str
) -> None:
    code = f"import sys; sys.modules['{library}'] = None; from gpusage.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    installed_as = {"sklearn": "scikit-learn"}.get(library, library)
    assert done.returncode == 1
    assert f"Library {installed_as} must be there" in done.stderr
    assert f"Install gpusage with its extra [{extra}]." in done.stderr
    assert "Traceback" not in done.stderr
