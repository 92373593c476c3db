"""Options that several commands share: the models, how they are run, on which GPUs, and `--json`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from click.shell_completion import CompletionItem

from gpusage_hooks.comment import MANNER_KEYS, MODEL_SUFFIXES, parse_model, parse_shape
from gpusage_hooks.errors import RequestError
from gpusage_hooks.synonyms import usual_word
from gpusage_hooks.types import Mode, ModelRequest, Optimizer, Precision, Strategy, Workload

Function = TypeVar("Function", bound=Callable[..., Any])

_DEFAULT = Workload()

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # no generic before click 8.2


class Words(_Choice):
    """One of several words, or another that users know for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own types
        """Return the usual word for *value*."""
        return super().convert(usual_word(value, self.choices), param, ctx)


def _checked_shapes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for value in values:
            parse_shape(value)
    except RequestError as error:
        raise click.UsageError(str(error)) from error
    return values


shape_option = click.option(
    "--shape",
    metavar="NAME=SIZES",
    multiple=True,
    callback=_checked_shapes,
    help="Size of a free dimension or of a whole input: seq=128 or input=3x224x224; may be repeated.",
)

_batch_option = click.option(
    "--batch", type=click.IntRange(1, 10**9), metavar="N", help="Samples per step on one GPU.  [default: 1]"
)
_MANNER_OPTIONS = (
    click.option("--mode", type=Words(get_args(Mode)), help=f"[default: {_DEFAULT.mode}]"),
    click.option(
        "--precision",
        type=Words(get_args(Precision)),
        help="fp16 and bf16 mean automatic mixed precision in training; fp16-pure and bf16-pure: everything has two "
        f"bytes; int8 and int4: quantised weights, in inference.  [default: {_DEFAULT.precision}]",
    ),
    click.option(
        "--optimizer",
        type=Words(get_args(Optimizer)),
        help=f"Optimizer in training; none: forward and backward only.  [default: {_DEFAULT.optimizer}]",
    ),
    shape_option,
    click.option(
        "--accumulate",
        type=click.IntRange(1, 10**9),
        metavar="N",
        help="Training: steps whose gradients are added up for one update.  [default: 1]",
    ),
    click.option(
        "--trainable", metavar="SHARE", help="Training: share of the parameters that is trained, 0.02.  [default: 1]"
    ),
    click.option(
        "--generate",
        metavar="PROMPT+NEW",
        help="Inference of a language model: tokens of the prompt, and tokens that it writes, 512+128.",
    ),
    click.option(
        "--checkpointing",
        flag_value="on",
        default=None,
        help="Training: activations of repeated blocks are computed once more, not kept.",
    ),
    click.option(
        "--gpus",
        "run_gpus",
        type=click.IntRange(1, 10**9),
        metavar="N",
        help="Training: GPUs that train together, each with its own batch; figures are per GPU.  [default: 1]",
    ),
    click.option(
        "--strategy",
        type=Words(get_args(Strategy)),
        help=f"Training on several GPUs: how the model is divided between them.  [default: {_DEFAULT.strategy}]",
    ),
    click.option(
        "--compile",
        flag_value="on",
        default=None,
        help="The model is compiled (torch.compile): inference in half precision is faster, and it is not familiar.",
    ),
)


_SHARE_WISH_OPTIONS = (
    click.option(
        "--slowdown", "wish_slowdown", metavar="TIMES", help="What a share may cost, 1.1; 1 means never share."
    ),
    click.option(
        "--utilization",
        "wish_utilization",
        metavar="PERCENT[@BATCH]",
        help="What nvidia-smi showed in a run alone on a whole GPU; 60@32 is of batch 32.",
    ),
    click.option(
        "--step-time", "wish_step_time", metavar="TIME@GPU", help="Step time of a run alone on a whole GPU, 30ms@a100."
    ),
)


def json_option(function: Function) -> Function:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else.")(function)


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return model files and folders that begin with *incomplete*; a folder that stands alone is looked into."""
    matches = list(_model_paths(incomplete))
    while len(matches) == 1 and matches[0].endswith("/"):
        inside = list(_model_paths(matches[0]))
        if not inside:
            break
        matches = inside
    return [CompletionItem(path) for path in sorted(matches)]


def complete_gpu(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return GPUs of the catalogue that begin with *incomplete*."""
    from gpusage.api import advisor  # noqa: PLC0415 - only to complete a word

    wanted = incomplete.lower()
    return [CompletionItem(gpu.name, help=gpu.generation) for gpu in advisor().catalogue if gpu.name.startswith(wanted)]


def models_argument(function: Function) -> Function:
    """Add one or more models as ``models``."""
    return click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_model)(
        function
    )


def gpu_option(*, multiple: bool) -> Callable[[Function], Function]:
    """Add ``--gpu``: as ``gpus``, or one and required as ``gpu``."""
    text = "GPU to predict for; or several, by commas or repeated.  [default: one of each generation]"
    text = text if multiple else "The GPU to share."
    name = "gpus" if multiple else "gpu"
    return click.option(
        "--gpu",
        name,
        metavar="NAME",
        multiple=multiple,
        required=not multiple,
        callback=_apart if multiple else None,
        help=text,
        shell_complete=complete_gpu,
    )


def _apart(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Return the names in *values*, of which each may hold several, with commas between them."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def workload_options(function: Function) -> Function:
    """Add how models are run; a command hands them on to `read_requests` as a mapping."""
    return _batch_option(manner_options(function))


def manner_options(function: Function) -> Function:
    """Add how models are run, the batch left out; a command hands them on to `read_requests` as a mapping."""
    for option in reversed(_MANNER_OPTIONS):
        function = option(function)
    return function


def share_wish_options(function: Function) -> Function:
    """Add what a user accepts and knows of a share; a command hands the three on to `read_requests` with the others."""
    for option in reversed(_SHARE_WISH_OPTIONS):
        function = option(function)
    return function


def read_requests(models: Sequence[str], options: Mapping[str, Any]) -> list[ModelRequest]:
    """Return what each word on the command line asks for.

    A word is a model, with its own options where it has some (``resnet50.onnx,batch=64``); the command's options
    hold for what it leaves open.

    Args:
        models: The words.
        options: ``batch``, ``mode``, ``precision``, ``optimizer``, ``steps``, ``shape``, those of
            `MANNER_KEYS` and of `share_wish_options`; ``None`` or absent where not given.

    Raises:
        RequestError: A word is malformed.
    """
    return [_request(word, options) for word in models]


def _request(word: str, options: Mapping[str, Any]) -> ModelRequest:
    text = f'"{word}"' if '"' not in word and os.path.lexists(word) else word
    request = parse_model(",".join([text, *_added(text, options)]))
    if not request.enabled:
        message = f"Model {word!r} must be one to predict; got 'gpusage=off'. Remove it."
        raise RequestError(message)
    return request


def _added(text: str, options: Mapping[str, Any]) -> Iterable[str]:
    """Yield the command's options that *text* does not settle itself."""
    settled = _QUOTED.sub("", text)
    wishes = {key: f"wish_{key}" for key in ("slowdown", "utilization", "step_time")}
    names = {**wishes, "gpus": "run_gpus"}
    for key in ("batch", "mode", "precision", "optimizer", "steps", *MANNER_KEYS, *wishes):
        value = options.get(names.get(key, key))
        if value is not None and not re.search(rf",\s*{key}=", settled):
            yield f"{key}={value}"
    for shape in options.get("shape") or ():
        name = shape.partition("=")[0]
        if not re.search(rf",\s*shape={re.escape(name)}=", settled):
            yield f"shape={shape}"


def beside(folder: Path, model: str) -> str:
    """Return *model* as a path in *folder* where there is one, and else as it is: a name, or a path of its own.

    A folder that may not be searched counts as one that has no such file; reading the model then says why.
    """
    path = os.path.join(folder, model)  # noqa: PTH118 - pathlib raises where a folder may not be searched
    return path if os.path.exists(path) else model  # noqa: PTH110 - as above


def _model_paths(incomplete: str) -> Iterable[str]:
    folder, _, start = incomplete.rpartition("/")
    prefix = incomplete[: len(incomplete) - len(start)]
    try:
        entries = list(os.scandir(Path(folder or ("/" if prefix else ".")).expanduser()))
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(start) or (entry.name.startswith(".") and not start):
            continue
        if entry.is_dir():
            yield f"{prefix}{entry.name}/"
        elif entry.name.endswith(MODEL_SUFFIXES):
            yield f"{prefix}{entry.name}"
