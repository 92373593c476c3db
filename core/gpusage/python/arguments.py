"""The arguments of the Python API, checked: a wrong argument gets a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter
from numbers import Integral, Real
from typing import Any, TypedDict

from gpusage_hooks import job_values
from gpusage_hooks.comment import contradictions
from gpusage_hooks.errors import RequestError
from gpusage_hooks.job_keys import JOB_KEYS, JobKey
from gpusage_hooks.types import Decoding, Engine, Layout, Mode, Optimizer, Precision, SoloRun, Strategy, Workload
from gpusage_hooks.units import WHOLE_PERCENT

_KEYS: Mapping[str, JobKey] = {
    row.targets[0]: row
    for row in JOB_KEYS.values()
    if row.group in ("model", "run") and row.targets and row.name not in ("shape", "steps")
}
"""The keys of a job that are arguments, by the names of the fields."""


class Run(TypedDict, total=False):
    """How a model is run: the arguments of `predict` and `explain` that are fields of `gpusage_hooks.types.Workload`.

    Attributes:
        batch_size: Samples in one step on one GPU; 1 where it is left out.
        mode: ``train`` or ``infer``.
        precision: ``fp32``, ``tf32``, ``fp16`` or ``bf16``; the last two mean automatic mixed precision in training.
            ``fp16-pure``, ``bf16-pure``: everything has two bytes. ``fp8-mixed``: training as ``bf16`` with the
            products of linear layers in fp8. ``int8``, ``int4``, ``fp8``, ``nf4``,
            ``bnb-int8``, ``w8a8``: quantised weights, in inference and below adapters.
        optimizer: ``none``, ``sgd``, ``momentum``, ``adam``, ``adamw``, ``adafactor``, ``adam8bit``, ``adamw8bit`` or
            ``muon``; only training has one.
        accumulate: Training: steps whose gradients are added up for one update.
        trainable: Training: the share of the parameters that is trained, above 0 and at most 1.
        lora: Training: the rank of adapters beside all linear layers, which alone are trained.
        checkpointing: Training: whether the activations of repeated blocks are computed once more, not kept.
        gpus: Training: GPUs that train together, each with ``batch_size`` samples of its own unless *tensor*, *context*
            or *pipeline* divide them; figures are per GPU. With *generate*: GPUs that divide each layer; memory is per
            GPU, times and rates are of all.
        tensor: Training: GPUs among which each layer is divided.
        sequence_parallel: Training: whether these GPUs also divide norms, dropouts and residuals, by their tokens.
        context: Training: GPUs among which each sequence is divided.
        expert: Training: GPUs among which the experts of a mixture are divided.
        pipeline: Training: stages, each with some of the layers; ``accumulate`` are its micro-batches.
        virtual_pipeline: Training: pieces of each stage of an interleaved pipeline.
        strategy: Training on several GPUs: ``ddp``, ``zero1``, ``zero2``, ``zero3`` or ``fsdp``. Beside ``generate``:
            ``pipeline``, where each GPU holds some of the layers.
        network_bytes_per_s: Training on more than 8 GPUs: what the network between hosts carries for each GPU, one way.
        generate: Inference: tokens of a language model's prompt, and tokens that it writes, as ``(512, 128)``.
        compile: Whether `torch.compile` fuses the model's operators, as is predicted of half precision.
        layout: ``channels_first``, or ``channels_last`` for images whose channels lie side by side.
        engine: Inference: what runs the model, ``eager``, ``compile``, ``vllm``, ``tensorrt-llm`` or ``tensorrt``.
        memory_share: Inference: of the memory that it sees that the engine is told to take.
        processes: That run the model on the GPU at a time; all figures but the step time are of all of them.
    """

    batch_size: int
    mode: Mode
    precision: Precision
    optimizer: Optimizer
    accumulate: int
    trainable: float
    lora: int | None
    checkpointing: bool
    gpus: int
    tensor: int
    sequence_parallel: bool
    context: int
    expert: int
    pipeline: int
    virtual_pipeline: int
    strategy: Strategy
    network_bytes_per_s: float | None
    generate: Decoding | tuple[int, int] | None
    compile: bool
    layout: Layout
    engine: Engine
    memory_share: float | None
    processes: int


def parameters() -> Iterator[Parameter]:
    """Yield the arguments that `read_workload` takes, with their defaults, for help and completion."""
    for field in fields(Workload):
        if field.name in _KEYS:
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)


def read_workload(arguments: Mapping[str, object]) -> Workload:
    """Return the workload of *arguments*, by the names of its fields.

    Raises:
        RequestError: One of them is no field of a workload, or not what that may be.
    """
    known: dict[str, Any] = {name: _read_field(name, value) for name, value in arguments.items()}
    values = {_KEYS[name].name: value for name, value in known.items() if value is not None}
    for key, rule, cure in contradictions(values, _spelled):
        name = JOB_KEYS[key].targets[0]
        subject = f"Argument {name!r}"
        raise _refusal(subject, rule, arguments[name], cure)

    if "generate" in values:
        known.setdefault("mode", "infer")  # only a model that answers has tokens to generate
    is_mixed = "mixed" in str(arguments.get("precision")).lower()
    if known.get("lora") and known.get("precision") in job_values.LORA_PRECISIONS and not is_mixed:
        known["precision"] = job_values.LORA_PRECISIONS[known["precision"]]
    return Workload(**known)


def _spelled(key: str, text: str = "") -> str:
    """Return *key* of a comment, and its value, as the argument of the same meaning."""
    row = JOB_KEYS[key]
    value = row.kind.parse(key, text) if text else None
    if isinstance(value, Decoding):
        value = (value.prompt_tokens, value.new_tokens)
    return repr(f"{row.targets[0]}={value!r}" if text else row.targets[0])


def _read_field(name: str, value: object) -> object:
    """Return the value of the field *name* of a workload for the argument *value*."""
    if name not in _KEYS:
        message = f"Argument {name!r} must be one that gpusage knows; got {name!r}. {job_values.key_hint(name, _KEYS)}"
        raise RequestError(message)

    subject, kind = f"Argument {name!r}", _KEYS[name].kind
    if isinstance(kind, job_values.Words):
        word = job_values.usual_word(value, kind.choices) if isinstance(value, str) else value
        require(subject, f"be one of {', '.join(kind.choices)}", value, right=word in kind.choices)
        return word
    if isinstance(kind, job_values.Switch):
        require(subject, "be True or False", value, right=isinstance(value, bool))
    elif isinstance(kind, job_values.Count):
        rule = f"be a whole number, at least 1 and at most {job_values.MAXIMUM_COUNT}"
        require(subject, rule, value, right=_is_count(value, job_values.MAXIMUM_COUNT))
    elif isinstance(kind, job_values.Bandwidth):
        right = _is_number(value) and 1 <= _number(value) < math.inf
        require(subject, "be at least 1 byte per second, as 25e9 for 200 Gb/s", value, right=right)
    elif isinstance(kind, job_values.Number):
        right = _is_number(value) and 0 < _number(value) <= kind.most
        require(subject, f"be above 0 and at most {kind.most:g}, as {kind.example}", value, right=right)
    elif value is not None and not isinstance(value, Decoding):
        # Tokens of the prompt and new tokens, ``(512, 128)``.
        sizes = tuple(value) if isinstance(value, (tuple, list)) else ()
        right = len(sizes) == 2 and all(_is_count(size, job_values.MAXIMUM_COUNT) for size in sizes)  # a pair
        require(subject, "be tokens of the prompt and new tokens, as (512, 128)", value, right=right)
        return Decoding(prompt_tokens=sizes[0], new_tokens=sizes[1])
    return value


def read_alone(utilization: float | tuple[float, int] | None, step_time_s: float | None) -> SoloRun:
    """Return the figures of an earlier run; a utilization may stand beside its batch size, ``(0.6, 32)``.

    Raises:
        RequestError: The utilization is not a part of 1, its batch size is no count, or the step time is not above 0.
    """
    if step_time_s is not None:
        right = _is_number(step_time_s) and 0 < _number(step_time_s) < math.inf
        require("Argument 'step_time_s'", "be a number of seconds above 0", step_time_s, right=right)

    # A bare number is of the batch size in question.
    value: object = utilization
    share, batch_size = value if isinstance(value, tuple) and len(value) == 2 else (value, None)  # a pair
    if share is None:
        return SoloRun(step_time_s=step_time_s)
    right = _is_number(share) and 0 < _number(share) <= 1
    require("Argument 'utilization'", "be above 0 and at most 1, as 0.6 for 60 %", value, right=right)
    right = batch_size is None or _is_count(batch_size, job_values.MAXIMUM_COUNT)
    require("Argument 'utilization'", "have a batch size, as (0.6, 32)", value, right=right)
    return SoloRun(utilization=_number(share), step_time_s=step_time_s, batch_size=batch_size)


def read_share(share: int) -> int:
    """Return *share*, in percent.

    Raises:
        RequestError: It is not a whole number from 1 to 100.
    """
    right = _is_count(share, WHOLE_PERCENT)
    require("Argument 'share'", "be a whole number of percent, 1 to 100", share, right=right)
    return share


def read_gpus(gpu: str | Sequence[str]) -> list[str]:
    """Return the names in *gpu*.

    Raises:
        RequestError: It is neither a name nor a list of names.
    """
    names = [gpu] if isinstance(gpu, str) else [*gpu] if isinstance(gpu, Sequence) else []
    right = bool(names) and all(isinstance(name, str) for name in names)
    require("Argument 'gpu'", "be a name such as 'a100', or a list of names", gpu, right=right)
    return names


def read_shape(shape: Mapping[str, int | Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each free dimension or input; a bare number is a single size.

    Raises:
        RequestError: It has no names, or a size is not a whole number above 0.
    """
    require("Argument 'shape'", "map names to sizes, as {'seq': 128}", shape, right=isinstance(shape or {}, Mapping))
    counts: dict[str, tuple[int, ...]] = {}
    for name, value in (shape or {}).items():
        require("Argument 'shape'", "have texts as names, as {'seq': 128}", name, right=isinstance(name, str))
        sizes = tuple(value) if isinstance(value, Sequence) else (value,)
        right = bool(sizes) and all(_is_count(size, job_values.MAXIMUM_COUNT) for size in sizes)
        rule = f"have whole numbers above 0 for {name!r}, as 128 or (3, 224, 224)"
        require("Argument 'shape'", rule, value, right=right)
        counts[name] = tuple(int(size) for size in sizes)
    return counts


def read_examples(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:  # tensors, and torch may not be there
    """Return the inputs of a module, by place and by name: one, several in a tuple or a list, or some by name.

    One tensor is one input, however many samples it has; iterated over, it would become that many inputs.

    Raises:
        RequestError: A name is not a text.
    """
    if value is None:
        return (), {}
    if isinstance(value, (tuple, list)):
        return tuple(value), {}
    if not isinstance(value, Mapping):
        return (value,), {}

    right = all(isinstance(name, str) for name in value)
    require("Argument 'example_inputs'", "have texts as names", [*value], right=right)
    return (), dict(value)


def require(subject: str, rule: str, value: object, *, right: bool, cure: str = "Change it") -> None:
    """Require *value*, which *subject* is, to keep to *rule*; *cure* is the way out.

    Raises:
        RequestError: *right* is false.
    """
    if not right:
        raise _refusal(subject, f"must {rule}", value, cure)


def _refusal(subject: str, rule: str, value: object, cure: str) -> RequestError:
    text = " ".join(repr(value).split())  # a tensor's repr has lines
    shown = text if len(text) <= job_values.SHOWN_LENGTH else f"{text[: job_values.SHOWN_LENGTH - 3]}..."
    return RequestError(f"{subject} {rule}; got {shown}. {cure}.")


def _is_count(value: object, maximum: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) <= maximum


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # a whole number of 309 digits
        return math.inf
