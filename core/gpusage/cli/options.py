"""Options that several commands share: the models, how they are run, on which GPUs, and `--json`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from gpusage_hooks.comment import is_model_name, parse_model
from gpusage_hooks.errors import RequestError
from gpusage_hooks.job_keys import JOB_KEYS, STEP_SETTINGS, JobKey
from gpusage_hooks.job_values import MAXIMUM_COUNT, Count, Duration, Sizes, Switch, Words, usual_word
from gpusage_hooks.types import ModelRequest

Function = TypeVar("Function", bound=Callable[..., Any])

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
MAXIMUM_DURATION_S = 100 * 365 * 86400.0
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([a-z]*)")
# Keys without an option of their own: the model is an argument, and the others are about a job that is submitted.
_COMMENT_ONLY = ("model", "gpusage", "learn", "first_run")
_STEP_KEYS = ("mode", "precision", "optimizer", "shape", *(row.name for row in STEP_SETTINGS))


if TYPE_CHECKING:
    _Choice = click.Choice[str]
    _ParamType = click.ParamType[Any]
else:
    _Choice, _ParamType = click.Choice, click.ParamType  # no generics in older clicks


class WordsType(_Choice):
    """One of several words, or another that users know for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # click's own types
        """Return *value* if the usual word for it is one of them; how it is written may count beside other keys."""
        super().convert(usual_word(value, self.choices), param, ctx)
        return value


class Parsed(_ParamType):
    """A text that *parse* makes a value of; what it refuses is wrong usage."""

    def __init__(self, form: str, parse: Callable[[str], Any]) -> None:
        self.name, self.parse = form, parse

    def get_metavar(self, *_: Any, **__: Any) -> str:  # since click 8.2 it is given a context as well
        """Return how the text is written."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # click's own types
        """Return the value of the text *value*."""
        try:
            return self.parse(value)
        except RequestError as error:
            self.fail(str(error), param, ctx)
        except ValueError as error:
            self.fail(f"must be {error}.", param, ctx)


def job_options(*names: str) -> Callable[[Function], Function]:
    """Add the options of the keys *names*, by default of all; a command hands them on to `read_request`."""
    rows = [JOB_KEYS[name] for name in names] or [row for row in JOB_KEYS.values() if row.name not in _COMMENT_ONLY]

    def add(function: Function) -> Function:
        # Decorators apply from the bottom up: reversed, the help lists the options in the table's order.
        for row in reversed(rows):
            function = _job_option(row)(function)
        return function

    return add


def _job_option(row: JobKey) -> Callable[[Function], Function]:
    """Return the option of one key; it hands on the text of the value, or nothing where it is left out."""
    name = f"--{row.name.replace('_', '-')}"
    shows_default = row.workload_default is not None and not isinstance(row.workload_default, (bool, tuple))
    text = f"{row.help}  [default: {row.default}]" if shows_default else row.help
    if isinstance(row.kind, Switch):
        return click.option(name, row.name, flag_value="on", default=None, help=text)
    if isinstance(row.kind, Words):
        names = (name, "--dtype") if row.name == "precision" else (name,)  # PyTorch's word, and that of engines
        return click.option(*names, row.name, type=WordsType(row.kind.choices), help=text)
    if isinstance(row.kind, Count):
        return click.option(name, row.name, type=click.IntRange(1, MAXIMUM_COUNT), metavar=row.form, help=text)

    def checked(value: str) -> str:
        try:
            row.kind.parse(row.name, value)
        except RequestError as error:  # it names the key, which is the option
            raise click.UsageError(str(error)) from error
        return value

    # A model may have several inputs, each with its shape.
    is_multiple = isinstance(row.kind, Sizes)
    return click.option(name, row.name, type=Parsed(row.form, checked), multiple=is_multiple, help=text)


def pop_job_options(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the values of `job_options` from *options*, and return them."""
    return {name: options.pop(name) for name in JOB_KEYS if name in options}


flag = partial(click.option, is_flag=True)
"""Adds an option without a value."""
path_option = partial(click.option, type=click.Path(path_type=Path))
"""Adds an option whose value is a path."""
json_option = flag("--json", "as_json", help="Print one JSON document, and nothing else.")
"""Adds ``--json``."""


def duration_s(text: str) -> float:
    """Return the seconds of *text*, a long time as people write it: ``90s``, ``25m``, ``8h``, ``2d``, or bare seconds.

    Raises:
        ValueError: It is no time of at least 0.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match or match[2] not in _SECONDS:
        message = f"a time such as 90s, 25m, 8h or 2d; got {text!r}"
        raise ValueError(message)

    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > MAXIMUM_DURATION_S:
        message = f"a time of at most 100 years; got {text!r}"
        raise ValueError(message)
    return seconds


TIME = Parsed("TIME", duration_s)
"""The seconds of a long time."""
LATENCY = Parsed("TIME", partial(Duration("200ms").parse, "p99"))
"""The seconds of a short time, such as ``200ms``."""
RATE = Parsed("N/s", partial(JOB_KEYS["rate"].kind.parse, "rate"))
"""Requests a second, written ``5`` or ``5/s``."""


def read_sizes(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return batch sizes joined by commas, each once, in their order."""
    size, words = click.IntRange(1, 10**9), text.split(",") if text is not None else ()
    sizes: list[int] = [size(word.strip(), parameter, context) for word in words]
    return tuple(dict.fromkeys(sizes))


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return model files and folders that begin with *incomplete*; a folder that stands alone is looked into."""
    matches = list(_model_paths(incomplete))
    # A folder with one entry is no choice: a shell goes on to what is inside.
    while len(matches) == 1 and matches[0].endswith("/"):
        inside = list(_model_paths(matches[0]))
        if not inside:
            break
        matches = inside
    return [CompletionItem(path) for path in sorted(matches)]


def complete_gpu(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return GPUs of the catalogue that begin with *incomplete*."""
    from gpusage.decisions.advisor import advisor  # only to complete a word

    wanted = incomplete.lower()
    return [CompletionItem(gpu.name, help=gpu.generation) for gpu in advisor().catalogue if gpu.name.startswith(wanted)]


models_argument = click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_model)
"""Adds one or more models as ``models``."""


gpus_option = click.option(
    "--gpu",
    "gpu_names",
    metavar="NAME",
    multiple=True,
    # Each value may hold several, with commas between them.
    callback=lambda _, __, values: tuple(filter(None, map(str.strip, ",".join(values).split(",")))),
    help="GPU to predict for; or several, by commas or repeated.  [default: one of each generation]",
    shell_complete=complete_gpu,
)
"""Adds any number of GPUs as ``gpu_names``."""
workload_options = job_options("batch", *_STEP_KEYS)
"""Adds how models are run."""
step_options = job_options(*_STEP_KEYS)
"""Adds how models are run, the batch left out."""


def read_request(word: str, options: Mapping[str, Any]) -> ModelRequest:
    """Return the request of one word on the command line.

    A word is a model, with its own options where it has some (``resnet50.onnx,batch=64``); the command's options
    hold for what it leaves open.

    Args:
        word: The word.
        options: The values of `job_options` by their keys; ``None`` or absent where they are left out.

    Raises:
        RequestError: The word is malformed.
    """
    # A file whose name has a comma is one word, where it exists.
    text = f'"{word}"' if '"' not in word and os.path.lexists(word) else word

    words, own = [text], _QUOTED.sub("", text)
    for key in JOB_KEYS:
        value = options.get(key)
        if value is not None and key != "shape" and not re.search(rf",\s*{key}=", own):
            words.append(f"{key}={value}")
    for shape in options.get("shape") or ():
        name = shape.partition("=")[0]
        if not re.search(rf",\s*shape={re.escape(name)}=", own):
            words.append(f"shape={shape}")

    request = parse_model(",".join(words))
    if not request.enabled:
        message = f"Model {word!r} must be one to predict; got 'gpusage=off'. Remove it."
        raise RequestError(message)
    return request


def resolve_model_path(folder: Path, model: str) -> str:
    """Return *model* as a path in *folder* where there is one, and else as it is: a name, or a path of its own.

    A folder that may not be searched counts as one that has no such file; reading the model then says why.
    """
    path = os.path.join(folder, model)  # noqa: PTH118 - pathlib raises where a folder may not be searched
    return path if os.path.exists(path) else model  # noqa: PTH110 - as above


def _model_paths(incomplete: str) -> Iterable[str]:
    from gpusage.decisions.advisor import advisor  # only to complete a word

    names = advisor().model_names
    folder, _, start = incomplete.rpartition("/")
    prefix = incomplete[: len(incomplete) - len(start)]
    try:
        entries = list(os.scandir(Path(folder or ("/" if prefix else ".")).expanduser()))
    except OSError:
        return
    for entry in entries:
        # Hidden files are completed only where the user wrote the dot, as shells do.
        if not entry.name.startswith(start) or (entry.name.startswith(".") and not start):
            continue
        if entry.is_dir():
            yield f"{prefix}{entry.name}/"
        elif is_model_name(entry.name, names):
            yield f"{prefix}{entry.name}"
