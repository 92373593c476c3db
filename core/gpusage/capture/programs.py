"""The Python program in a command line or in a job script, as a user runs it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from gpusage_hooks.errors import RequestError

PYTHON = re.compile(r"python[0-9.]*")
# Programs that start Python programs.
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
# Programs that start Python of another environment than that of the command line.
_ENVIRONMENTS = frozenset(
    {"conda", "mamba", "micromamba", "apptainer", "singularity", "docker", "podman", "pixi", "poetry"}
)
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_COMMANDS = frozenset({"--no-python", "--no_python"})
_HOSTS = ("--nnodes", "--num_nodes")
# Of one host; accelerate's are of all, and its number of hosts has another name.
_PROCESSES = ("--nproc_per_node", "--nproc-per-node", "--num_processes", "--num_gpus", "--num_accelerators")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_ALL_ARGUMENTS = frozenset({"$@", "$*", "${@}", "${*}"})
_HEAD_BYTES = 1024


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


def program_of(
    command: Sequence[str], folder: str = ".", assigned: Mapping[str, str] = MappingProxyType({})
) -> Program:
    """Return the program that *command* runs in *folder*, itself or through srun, torchrun or a similar launcher.

    The variables *assigned* are set before.

    Raises:
        RequestError: *command* runs no Python program that has a name.
    """
    variables = dict(assigned)
    # The first word that is Python or a launcher begins the program; all before it is srun, env and the like.
    for place, word in enumerate(command):
        name = Path(word).name
        if name in _ENVIRONMENTS:
            message = (
                f"Command of 'gpusage capture' must run Python of this environment; got {name!r}. "
                "Activate its environment, and run 'gpusage capture' there."
            )
            raise RequestError(message)

        if PYTHON.fullmatch(name):
            program = _python_program(command[place:])
        elif name in _LAUNCHERS:
            python = str(Path(word).with_name("python")) if "/" in word else "python"
            program = _launcher_program(command[place:], (python,))
        elif (assignment := _ASSIGNMENT.fullmatch(word)) is not None:
            variables[assignment[1]] = assignment[2]
            continue
        elif python_words := _python_of_file(word, folder, variables):
            program = _python_program([*python_words, *command[place + 1 :]])
        else:
            continue
        if program is None:
            break
        return replace(program, variables={**variables, **program.variables}, folder=folder)
    message = (
        f"Command of 'gpusage capture' must run a Python program, as 'python train.py'; got {shlex.join(command)!r}. "
        "Name the program, not a text of Python or a shell function."
    )
    raise RequestError(message)


def programs_in_script(text: str, arguments: Sequence[str] = ()) -> list[Program]:
    """Return the Python programs of the job script *text*, each with the variables and the folder of the lines above.

    Its own *arguments* are ``$1`` and so on.

    Raises:
        RequestError: The script runs no program, or a program whose words need a shell.
    """
    variables: dict[str, str] = {}
    positional = {str(place): word for place, word in enumerate(arguments, 1)}
    folder = "."
    programs: list[Program] = []

    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in _words(line):
            words += arguments if word in _ALL_ARGUMENTS else [_expand_variables(word, {**positional, **variables})]
        if not words:
            continue

        assigned = [_ASSIGNMENT.fullmatch(word) for word in words if word != "export"]
        if all(assigned):
            variables |= {each[1]: each[2] for each in assigned if each is not None}
        elif words[0] == "cd" and len(words) > 1:
            folder = str(Path(folder) / words[1])
        elif any(runs_python(word, folder, variables) for word in words):
            if "$(" in line or "`" in line:
                message = (
                    f"Line {line.strip()!r} must have words that need no shell to be worked out; got a command in it. "
                    "Write the command line after 'gpusage capture --'."
                )
                raise RequestError(message)
            programs.append(program_of(words, folder, variables))
    if not programs:
        message = (
            "Job script must have a line that runs a Python program, as 'python train.py'; got a script with none. "
            "For a program, write 'gpusage capture -- python train.py'."
        )
        raise RequestError(message)

    return programs


def is_job_script(word: str) -> bool:
    """Return whether *word* is a file that is no Python program of its own."""
    return Path(word).is_file() and not (word.endswith(".py") or runs_python(word))


def runs_python(word: str, folder: str = ".", variables: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Return whether *word* is Python, a launcher of it, or an executable Python file, with *variables* as ``PATH``."""
    name = Path(word).name
    is_python = PYTHON.fullmatch(name) is not None or name in _LAUNCHERS
    return is_python or bool(_python_of_file(word, folder, variables))


def _python_of_file(word: str, folder: str, variables: Mapping[str, str]) -> list[str]:
    """Return the command of the executable file *word*, if its first lines name Python, as a console script's do."""
    path = shutil.which(Path(folder, word).absolute() if "/" in word else word, path=variables.get("PATH"))
    try:
        with open(path or os.devnull, "rb") as file:  # noqa: PTH123 - may be none
            head = file.read(_HEAD_BYTES).decode("utf-8", "replace").splitlines()
        # pip's form for a path with blanks, or a long one: a shell reads the second line, and Python a text.
        is_shell_then_python = len(head) > 1 and head[1].startswith("'''exec' ")
        line = head[1][len("'''exec' ") :].partition(' "$0"')[0] if is_shell_then_python else head[0]
        words = shlex.split(line.removeprefix("#!")) if is_shell_then_python or line.startswith("#!") else []
    except (OSError, ValueError, IndexError):  # unreadable, no text, empty
        return []

    # Of env, with or without -S, the first word that is no option.
    if words and Path(words[0]).name == "env":
        words = [each for each in words[1:] if each != "-S"]
    is_python = bool(words) and PYTHON.fullmatch(Path(words[0]).name) is not None
    return [*words, str(path)] if is_python else []


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


def program_place(command: Sequence[str]) -> int | None:
    """Return the place of the program, a script or ``-m``, behind Python's own options; ``None`` if it has no name."""
    place = 1
    while place < len(command) and command[place].startswith("-") and command[place] != "-m":
        if command[place] in ("-", "-c"):
            return None
        # An option with a value would be taken for the script.
        place += 2 if command[place] in _WITH_VALUE else 1
    words = 2 if "-m" in command[place : place + 1] else 1
    return place if place + words <= len(command) else None


def _python_program(command: Sequence[str]) -> Program | None:
    place = program_place(command)
    if place is None:
        return None

    # Launchers may run as modules of this very Python.
    python, words = tuple(command[:place]), tuple(command[place:])
    if words[0] == "-m" and words[1] in _LAUNCHER_MODULES:
        return _launcher_program(words[1:], python)
    return Program(python=python, words=words)


def _launcher_program(command: Sequence[str], python: tuple[str, ...]) -> Program | None:
    """Return the program behind a launcher's own options, with the number of processes; ``None`` where none is."""
    # The program is never the value of an option, so the first word that is a script, or -m, ends the options.
    ends = [place for place, word in enumerate(command) if word in ("-m", "--module") or word.endswith(".py")]
    place = 2 if command[1:2] in (["launch"], ("launch",)) else 1
    end = ends[0] if ends else len(command)
    options: dict[str, str] = {}
    while place < end and command[place].startswith("-"):
        name, equals, value = command[place].partition("=")
        options[name] = value
        place += 1
        has_value = not equals and place < end and not command[place].startswith("-") and name not in _COMMANDS
        if has_value:
            options[name] = command[place]
            place += 1

    words = ["-m" if word == "--module" else word for word in command[place : place + 1]] + [*command[place + 1 :]]
    gpu_count = _gpu_count(options)
    # Without Python of its own, the launcher starts a whole command line.
    if _COMMANDS & options.keys():
        return replace(program_of(words), gpu_count=gpu_count)
    if len(words) < (2 if words[:1] == ["-m"] else 1):
        return None
    return Program(python=python, words=tuple(words), gpu_count=gpu_count)


def _gpu_count(options: Mapping[str, str]) -> int:
    """Return the number of processes that a launcher starts; deepspeed may list them, as ``HOST:0,1@HOST:0,1``."""
    listed = options.get("--include") or options.get("-i", "")
    count = sum(len(host.split(",")) for host in listed.split("@"))
    for names in (_HOSTS, _PROCESSES):
        count *= max((int(options[name]) for name in names if options.get(name, "").isdecimal()), default=1) or 1
    return count
