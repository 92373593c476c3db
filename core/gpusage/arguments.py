"""The arguments of the Python API, checked: each wrong one gets one sentence."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter
from numbers import Integral, Real
from typing import Any, TypedDict, get_args

from gpusage_hooks.comment import QUANTISED, TRAINING_KEYS
from gpusage_hooks.errors import RequestError
from gpusage_hooks.synonyms import usual_word
from gpusage_hooks.types import Alone, Generation, Mode, Optimizer, Precision, Strategy, Workload
from gpusage_hooks.units import WHOLE_PERCENT

CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": get_args(Mode),
    "precision": get_args(Precision),
    "optimizer": get_args(Optimizer),
    "strategy": get_args(Strategy),
}
"""What the arguments of these names may be."""
NOT_ARGUMENTS = ("shape", "steps", "slo", "slowdown", "alone")
"""Fields of a workload that are said elsewhere, or that change no prediction."""
_FIELDS = {field.name: field for field in fields(Workload) if field.name not in NOT_ARGUMENTS}
_MAXIMUM_COUNT = 10**9


class Run(TypedDict, total=False):
    """How a model is run: the arguments of `predict` and `explain` that are fields of `gpusage_hooks.types.Workload`.

    Attributes:
        batch_size: Samples in one step on one GPU; 1 where it is left out.
        mode: ``train`` or ``infer``.
        precision: ``fp32``, ``tf32``, ``fp16`` or ``bf16``; the last two mean automatic mixed precision in training.
            ``fp16-pure``, ``bf16-pure``: everything has two bytes. ``int8``, ``int4``: quantised weights, in inference.
        optimizer: ``none``, ``sgd``, ``momentum``, ``adam``, ``adamw``, ``adafactor``, ``adam8bit`` or ``adamw8bit``;
            only training has one.
        accumulate: Training: steps whose gradients are added up for one update.
        trainable: Training: the share of the parameters that is trained, above 0 and at most 1.
        checkpointing: Training: whether the activations of repeated blocks are computed once more, not kept.
        gpus: Training: GPUs that each compute ``batch_size`` samples of a step; figures are per GPU.
        strategy: Training on several GPUs: ``ddp``, ``zero1``, ``zero2``, ``zero3`` or ``fsdp``.
        generate: Inference: tokens of a language model's prompt, and tokens that it writes, as ``(512, 128)``.
        compile: Whether `torch.compile` fuses the model's operators, as is predicted of inference in half precision.
    """

    batch_size: int
    mode: Mode
    precision: Precision
    optimizer: Optimizer
    accumulate: int
    trainable: float
    checkpointing: bool
    gpus: int
    strategy: Strategy
    generate: Generation | tuple[int, int] | None
    compile: bool


def parameters() -> Iterator[Parameter]:
    """Yield the arguments that `read_workload` takes, with their defaults, for help and completion."""
    for name, field in _FIELDS.items():
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)


def read_workload(arguments: Mapping[str, object]) -> Workload:
    """Return the workload of *arguments*, by the names of its fields.

    Raises:
        RequestError: One of them is no field of a workload, or not what that may be.
    """
    arguments = {name: _read_choice(name, value) for name, value in arguments.items()}
    for name in ("batch_size", "accumulate", "gpus"):
        count = arguments.get(name, 1)
        rule = f"be a whole number, at least 1 and at most {_MAXIMUM_COUNT}"
        require(f"Argument {name!r}", rule, count, right=_is_count(count, _MAXIMUM_COUNT))
    share = arguments.get("trainable", 1.0)
    right = _is_number(share) and 0 < _number(share) <= 1
    require("Argument 'trainable'", "be above 0 and at most 1, as 0.02 for 2 %", share, right=right)
    for name in ("checkpointing", "compile"):
        choice = arguments.get(name, False)
        require(f"Argument {name!r}", "be True or False", choice, right=isinstance(choice, bool))
    known: dict[str, Any] = {**arguments, "generate": _read_generation(arguments.get("generate"))}
    workload = Workload(**known)
    for name in TRAINING_KEYS:
        right = workload.mode == "train" or name not in arguments
        require(f"Argument {name!r}", "be left out where the mode is not train", arguments.get(name), right=right)
    rule, right = "be left out where 'gpus' is 1", workload.gpus > 1 or "strategy" not in arguments
    require("Argument 'strategy'", rule, workload.strategy, right=right)
    right = workload.mode == "infer" or workload.precision not in QUANTISED
    require("Argument 'precision'", "be of weights that can be trained", workload.precision, right=right)
    right = workload.mode == "infer" or workload.generate is None
    require("Argument 'generate'", "be left out where the mode is not infer", arguments.get("generate"), right=right)
    return workload


def _read_choice(name: str, value: object) -> object:
    """Return the usual word for *value*, where the argument *name* has some; a value of another argument as it is."""
    _check_name(name)
    choices = CHOICES.get(name)
    if choices is None:
        return value
    word = usual_word(value, choices) if isinstance(value, str) else value
    require(f"Argument {name!r}", f"be one of {', '.join(choices)}", value, right=word in choices)
    return word


def _read_generation(given: object) -> Generation | None:
    """Return what ``(512, 128)`` means, tokens of the prompt and new ones."""
    if given is None or isinstance(given, Generation):
        return given
    sizes = tuple(given) if isinstance(given, (tuple, list)) else ()
    right = len(sizes) == 2 and all(_is_count(size, _MAXIMUM_COUNT) for size in sizes)  # noqa: PLR2004 - a pair
    require("Argument 'generate'", "be tokens of the prompt and new tokens, as (512, 128)", given, right=right)
    return Generation(prompt_tokens=sizes[0], new_tokens=sizes[1])


def read_alone(utilization: float | tuple[float, int] | None, step_time_s: float | None) -> Alone:
    """Return what an earlier run showed; a utilization may stand beside the batch size that it is of, ``(0.6, 32)``.

    Raises:
        RequestError: The utilization is not a part of 1, its batch size is no count, or the step time is not above 0.
    """
    share, batch_size = _read_utilization(utilization)
    if step_time_s is not None:
        right = _is_number(step_time_s) and 0 < _number(step_time_s) < math.inf
        require("Argument 'step_time_s'", "be a number of seconds above 0", step_time_s, right=right)
    return Alone(utilization=share, step_time_s=step_time_s, batch_size=batch_size)


def _read_utilization(given: float | tuple[float, int] | None) -> tuple[float | None, int | None]:
    """Return a part of 1, and the batch size that it is of, where that is told."""
    is_pair = isinstance(given, tuple) and len(given) == 2  # noqa: PLR2004 - a pair
    share, batch_size = given if isinstance(given, tuple) and is_pair else (given, None)
    if share is None:
        return None, None
    right = _is_number(share) and 0 < _number(share) <= 1
    require("Argument 'utilization'", "be above 0 and at most 1, as 0.6 for 60 %", given, right=right)
    right = batch_size is None or _is_count(batch_size, _MAXIMUM_COUNT)
    require("Argument 'utilization'", "have a batch size, as (0.6, 32)", given, right=right)
    return _number(share), batch_size


def read_share(share: int) -> int:
    """Return *share*, in percent.

    Raises:
        RequestError: It is not a whole number from 1 to 100.
    """
    right = _is_count(share, WHOLE_PERCENT)
    require("Argument 'share'", "be a whole number of percent, 1 to 100", share, right=right)
    return share


def read_gpus(gpu: str | Sequence[str]) -> list[str]:
    """Return the names that *gpu* has, one or several.

    Raises:
        RequestError: It is neither a name nor a list of names.
    """
    names = [gpu] if isinstance(gpu, str) else [*gpu] if isinstance(gpu, Sequence) else []
    right = bool(names) and all(isinstance(name, str) for name in names)
    require("Argument 'gpu'", "be a name such as 'a100', or a list of names", gpu, right=right)
    return names


def read_shape(shape: Mapping[str, int | Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each free dimension or input; a bare number is one size.

    Raises:
        RequestError: It has no names, or a size is not a whole number above 0.
    """
    require("Argument 'shape'", "map names to sizes, as {'seq': 128}", shape, right=isinstance(shape or {}, Mapping))
    return dict(_named_sizes(shape or {}))


def _named_sizes(shape: Mapping[str, int | Sequence[int]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, given in shape.items():
        require("Argument 'shape'", "have texts as names, as {'seq': 128}", name, right=isinstance(name, str))
        sizes = tuple(given) if isinstance(given, Sequence) else (given,)
        right = bool(sizes) and all(_is_count(size, _MAXIMUM_COUNT) for size in sizes)
        rule = f"have whole numbers above 0 for {name!r}, as 128 or (3, 224, 224)"
        require("Argument 'shape'", rule, given, right=right)
        yield name, tuple(int(size) for size in sizes)


def require(subject: str, rule: str, value: object, *, right: bool) -> None:
    """See that *value*, which *subject* is, keeps to *rule*.

    Raises:
        RequestError: *right* is false.
    """
    if not right:
        message = f"{subject} must {rule}; got {_shown(value)}. Change it."
        raise RequestError(message)


def _shown(value: object, longest: int = 80) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _check_name(name: str) -> None:
    near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(_FIELDS)}."
    if name not in _FIELDS:
        message = f"Argument {name!r} must be one that gpusage knows; got {name!r}. {hint}"
        raise RequestError(message)


def _is_count(value: object, maximum: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= maximum


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # a whole number of 309 digits
        return math.inf
