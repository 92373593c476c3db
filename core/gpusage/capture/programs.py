"""The Python program in a command line or in a job script, as a user runs it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpusage_hooks.errors import RequestError

_PYTHON = re.compile(r"python[0-9.]*")
# Programs that start Python programs, each with its options that have no value.
_LAUNCHERS = {
    "torchrun": frozenset({"--standalone", "--no-python", "--no_python", "--run-path", "--run_path"}),
    "accelerate": frozenset(
        {"--multi_gpu", "--cpu", "--tpu", "--use_deepspeed", "--use_fsdp", "--debug", "--quiet", "-q", "--no_python"}
    ),
    "deepspeed": frozenset(
        {"--no_python", "--no_local_rank", "--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid", "--quiet", "-q"}
        | {"--bind_cores_to_rank", "--elastic_training"}
    ),
}
# Programs that start Python of another environment than that of the command line.
_ENVIRONMENTS = frozenset(
    {"conda", "mamba", "micromamba", "apptainer", "singularity", "docker", "podman", "pixi", "poetry"}
)
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_HOSTS = ("--nnodes", "--num_nodes")
# Of one host; accelerate's are of all, and its number of hosts has another name.
_PROCESSES = ("--nproc_per_node", "--nproc-per-node", "--num_processes", "--num_gpus", "--num_accelerators")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A Python program.

    Attributes:
        python: The interpreter, with its options.
        words: The script, or ``-m`` and a module, with the arguments.
        variables: Variables from its command line or job script.
        gpu_count: Its processes on all hosts, one for each GPU.
        folder: Its working folder, relative to the user's.
    """

    python: tuple[str, ...]
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    gpu_count: int = 1
    folder: str = "."


def program_of(command: Sequence[str]) -> Program:
    """Return the program that *command* runs, itself or through srun, torchrun, accelerate or a similar launcher.

    Raises:
        RequestError: *command* runs no Python program that has a name.
    """
    variables: dict[str, str] = {}
    # The first word that is Python or a launcher begins the program; all before it is srun, env and the like.
    for place, word in enumerate(command):
        name = Path(word).name
        assigned = _ASSIGNMENT.fullmatch(word)
        if name in _ENVIRONMENTS:
            message = (
                f"Command of 'gpusage capture' must run Python of this environment; got {name!r}. "
                "Activate its environment, and run 'gpusage capture' there."
            )
            raise RequestError(message)
        if _PYTHON.fullmatch(name):
            return _python_program(command[place:], variables)
        if name in _LAUNCHERS:
            return _launcher_program(command[place:], variables)

        if assigned is not None:
            variables[assigned[1]] = assigned[2]
    raise _refusal(shlex.join(command))


def program_in_script(text: str) -> Program:
    """Return the last Python program of a job script, with the variables and the folder of the lines above.

    Raises:
        RequestError: The script runs no program, or a program whose words need a shell.
    """
    variables: dict[str, str] = {}
    folder = "."
    program: Program | None = None

    # The last one: scripts prepare data before they train.
    for line in text.replace("\\\n", " ").splitlines():
        words = _words(line)
        if not words:
            continue

        words = [_expand_variables(word, variables) for word in words]
        assigned = [_ASSIGNMENT.fullmatch(word) for word in words if word != "export"]
        if all(assigned):
            variables |= {each[1]: each[2] for each in assigned if each is not None}
        elif words[0] == "cd" and len(words) > 1:
            folder = str(Path(folder) / words[1])
        elif any(_PYTHON.fullmatch(name) or name in _LAUNCHERS for name in (Path(word).name for word in words)):
            if "$(" in line or "`" in line:
                message = (
                    f"Line {line.strip()!r} must have words that need no shell to be worked out; got a command in it. "
                    "Write the command line after 'gpusage capture --'."
                )
                raise RequestError(message)
            last = program_of(words)
            variables |= last.variables
            program = Program(
                python=last.python,
                words=last.words,
                variables=dict(variables),
                gpu_count=last.gpu_count,
                folder=folder,
            )
    if program is None:
        raise no_job_script()

    return program


def no_job_script(program: str = "") -> RequestError:
    """Return the error for a script without a Python program, or for *program* in the place of a job script."""
    observed, name = (f"the Python program {program!r}", program) if program else ("a script with none", "train.py")
    message = (
        f"Job script must have a line that runs a Python program, as 'python {name}'; got {observed}. "
        f"For a program, write 'gpusage capture -- python {name}'."
    )
    return RequestError(message)


def _words(line: str) -> list[str]:
    """Return the words of *line* up to its first ``;``, ``|``, ``&`` or ``>``; empty for a cut line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";|&<>()"):
                break
            words.append(word)
    except ValueError:  # a quotation that another line ends
        return []

    return words[:-1] if words and line.rstrip().endswith("\\") else words


def _expand_variables(word: str, variables: Mapping[str, str]) -> str:
    """Return *word* with its variables replaced as a shell does it; unset variables are empty."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name) or os.environ.get(name) or match[2] or ""

    return _VARIABLE.sub(value, word)


def _python_program(command: Sequence[str], variables: Mapping[str, str]) -> Program:
    place = 1
    while place < len(command) and command[place].startswith("-") and command[place] != "-m":
        if command[place] in ("-", "-c"):
            raise _refusal(shlex.join(command))
        # An option with a value would be taken for the script.
        place += 2 if command[place] in _WITH_VALUE else 1

    # Launchers may run as modules of this very Python.
    python, words = tuple(command[:place]), tuple(command[place:])
    if words[:2] in (("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")):
        return _launcher_program(("torchrun", *words[2:]), variables, python)
    if words[:2] == ("-m", "accelerate.commands.launch"):
        return _launcher_program(("accelerate", *words[2:]), variables, python)
    if len(words) < (2 if words[:1] == ("-m",) else 1):
        raise _refusal(shlex.join(command))
    return Program(python=python, words=words, variables=dict(variables))


def _launcher_program(
    command: Sequence[str], variables: Mapping[str, str], python: tuple[str, ...] = ("python",)
) -> Program:
    """Return the program behind a launcher's own options, with the number of processes that it starts."""
    switches = _LAUNCHERS[Path(command[0]).name]
    options: dict[str, str] = {}
    place = 2 if command[1:2] == ["launch"] or command[1:2] == ("launch",) else 1
    while place < len(command) and command[place].startswith("-") and command[place] not in ("-m", "--module"):
        name, equals, value = command[place].partition("=")
        following = "".join(command[place + 1 : place + 2])
        # The program is never the value of an option, so behind an unknown switch it stays the program.
        is_one_word = bool(equals) or name in switches or following.endswith(".py")
        options[name] = value if is_one_word else following
        place += 1 if is_one_word else 2

    words = list(command[place:])
    if words[:1] == ["--module"]:
        words[0] = "-m"
    gpu_count = _gpu_count(options)
    # Without Python of its own, the launcher starts a whole command line.
    if {"--no-python", "--no_python"} & options.keys():
        program = program_of(words)
        return replace(program, variables={**variables, **program.variables}, gpu_count=gpu_count)
    if len(words) < (2 if words[:1] == ["-m"] else 1):
        raise _refusal(shlex.join(command))

    return Program(python=python, words=tuple(words), variables=dict(variables), gpu_count=gpu_count)


def _gpu_count(options: Mapping[str, str]) -> int:
    """Return the number of processes that a launcher starts; deepspeed may list them, as ``HOST:0,1@HOST:0,1``."""
    listed = options.get("--include") or options.get("-i", "")
    count = sum(len(host.split(",")) for host in listed.split("@"))
    for names in (_HOSTS, _PROCESSES):
        count *= max((int(options[name]) for name in names if options.get(name, "").isdecimal()), default=1) or 1
    return count


def _refusal(text: str) -> RequestError:
    message = (
        f"Command of 'gpusage capture' must run a Python program, as 'python train.py'; got {text!r}. "
        "Name the program, not a text of Python or a shell function."
    )
    return RequestError(message)
