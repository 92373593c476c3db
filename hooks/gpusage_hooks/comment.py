"""The words that a user writes to us: `model=resnet50.onnx,batch=64`, in a job's comment or on a command line.

A comment is ours when it begins with a model or one of our keys and names a model, and from a word `gpusage:` on, each
time up to the next `;`. Any other comment belongs to somebody else. What was clearly meant for us and is not of this
form is refused in one sentence, never silently left out.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, get_args

from gpusage_hooks.errors import RequestError
from gpusage_hooks.synonyms import usual_word
from gpusage_hooks.types import Alone, Generation, Mode, ModelRequest, Optimizer, Precision, Slo, Strategy, Workload

MODEL_SUFFIXES = (".onnx", ".pt2", ".card.json", "config.json")
MODEL_PREFIXES = ("timm:", "torchvision:", "hf:")
KEYS = (
    *("model", "batch", "shape", "mode", "precision", "optimizer", "steps", "slo", "rate"),
    *("slowdown", "utilization", "step_time", "accumulate", "trainable", "checkpointing", "generate"),
    *("gpus", "strategy", "compile", "gpusage"),
)
TRAINING_KEYS = ("accumulate", "trainable", "checkpointing", "gpus", "strategy")
"""Keys that only training knows."""
QUANTISED: tuple[Precision, ...] = ("int8", "int4")
"""Precisions of weights; what passes has two bytes."""
MANNER_KEYS = (*TRAINING_KEYS, "generate", "compile")
"""Keys that change what a step is."""

_MAXIMUM_COUNT = 10**9
_MAXIMUM_SLOWDOWN = 100
_OURS = re.compile(r"(?:^|[\s;,])gpusage:", re.IGNORECASE)
_ALMOST_OURS = re.compile(r"(?:^|[\s;,])gpusage[\s;,]+model=")
_CLAUSE = re.compile(r"""(?:"[^"]*"|'[^']*'|[^;])*""")
_SLIP_RATIO = 0.8  # one letter of "model" too many, too few, another, or two exchanged
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""")
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_DURATION = re.compile(rf"({_DECIMAL.pattern})\s*(us|ms|s)")
_SECONDS: Mapping[str, float] = MappingProxyType({"us": 1e-6, "ms": 1e-3, "s": 1.0})


def parse_comment(text: str) -> ModelRequest | None:
    """Return what a job's comment tells us, or ``None`` where it is not addressed to us.

    Raises:
        RequestError: It is addressed to us and malformed.
    """
    marked = _OURS.search(text)
    if marked:
        return parse_model(_clause(text[marked.end() :]))
    stripped = text.strip()
    if _is_ours(stripped):
        return parse_model(_clause(stripped))
    _refuse_slips(stripped)
    return None


def _is_ours(text: str) -> bool:
    """Tell whether a comment without `gpusage:` begins with a model or a key of ours, and names a model."""
    first, _, rest = re.sub(r"[,;]", ",", text).partition(",")
    model_later = re.search(r"(?:^|,)\s*model=", rest)
    begins = looks_like_model(first) and (not rest or _key(rest) in KEYS)
    return text.startswith(("model=", "gpusage=")) or begins or (_key(first) in KEYS and model_later is not None)


def _key(text: str) -> str | None:
    """Return the key that *text* begins with."""
    key, separator, _ = text.strip().partition("=")
    return key if separator else None


def _clause(text: str) -> str:
    """Return *text* up to its first ``;`` outside quotes.

    Raises:
        RequestError: One of our keys follows it, where the user expects it to count.
    """
    match = _CLAUSE.match(text)
    clause = match[0] if match else ""
    for part in text[len(clause) + 1 :].split(";"):
        if _key(part) in KEYS:
            whole = f"{clause.strip()},{part.strip()}"
            message = (
                f"Comment {text.strip()!r} must join its keys by ','; got ';' before {part.strip()!r}. Write {whole!r}."
            )
            raise RequestError(message)
    return clause


def _refuse_slips(text: str) -> None:
    """Refuse a comment that misses our form by a letter."""
    key, _, value = re.split(r"[,;]", text, maxsplit=1)[0].partition("=")
    close = difflib.SequenceMatcher(None, key.lower(), "model").ratio() >= _SLIP_RATIO
    if close and len(key) <= len("model") + 1 and looks_like_model(value):
        message = f"Key {key!r} of comment {text!r} must be one that gpusage knows; got {key!r}. Did you mean 'model'?"
        raise RequestError(message)
    if _ALMOST_OURS.search(text):
        message = f"Comment {text!r} must have a ':' after 'gpusage'; got none. Write 'gpusage: model=PATH,batch=N'."
        raise RequestError(message)


def looks_like_model(word: str) -> bool:
    """Tell whether *word* is a model's path or name and nothing else; `key=x.onnx` is somebody's setting."""
    alone = not re.search(r"[\s,;]|^\w+=", word)
    return alone and (word.endswith(MODEL_SUFFIXES) or word.startswith(MODEL_PREFIXES))


def parse_model(text: str) -> ModelRequest:
    """Return what *text*, comma-separated ``key=value`` with the model first or as ``model=``, asks for.

    Raises:
        RequestError: A key is unknown or given twice, a value is malformed, or no model is named.
    """
    values: dict[str, str] = {}
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for key, value in _pairs(text):
        if key == "shape":
            shapes.append(parse_shape(value))
        elif key in values:
            _refuse(key, "must be given once", value, "Remove one of the two")
        else:
            values[key] = value
    enabled = _one_of("gpusage", values.get("gpusage", "on"), ("on", "off")) == "on"
    if enabled and not values.get("model"):
        message = f"Comment {text!r} must name a model; got none. Write 'model=PATH,batch=N'."
        raise RequestError(message)
    workload = _workload(values, tuple(shapes))
    chosen = {"batch": workload.batch_size, "mode": workload.mode, "precision": workload.precision}
    return ModelRequest(
        model=values.get("model", ""),
        workload=workload,
        named=tuple(values),
        assumed=tuple(f"{key}={value}" for key, value in chosen.items() if key not in values),
        enabled=enabled,
    )


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the sizes of ``seq=128`` or ``input=3x224x224``."""
    name, _, sizes = text.partition("=")
    if not name or not re.fullmatch(r"\d+(?:x\d+)*", sizes):
        _refuse("shape", "must name sizes joined by 'x'", text, "Write 'shape=seq=128' or 'shape=input=3x224x224'")
    return name, tuple(_count("shape", size) for size in sizes.split("x"))


def parse_duration_s(key: str, text: str, example: str = "50ms") -> float:
    """Return the seconds of a duration such as ``50ms``; *example* is a whole value of *key*, for the error."""
    match = _DURATION.fullmatch(text)
    if not match or float(match.group(1)) == 0:
        _refuse(key, "must be a time above 0 in us, ms or s", text, f"Write '{key}={example}'")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield key and value of each comma-separated word; a first word without a key is the model."""
    if text.count('"') % 2 or text.count("'") % 2:
        message = f"Comment {text!r} must close every quote; got an open one. Add the missing quote."
        raise RequestError(message)
    for index, word in enumerate(match.group().strip() for match in _WORD.finditer(text)):
        key, separator, value = word.partition("=")
        if not word:
            continue
        if index == 0 and key not in KEYS and (not separator or word[0] in "\"'" or looks_like_model(word)):
            yield ("gpusage", "off") if word == "off" else ("model", _unquoted(word))
        elif key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(KEYS)}."
            message = f"Key {key!r} of comment {text!r} must be one that gpusage knows; got {word!r}. {hint}"
            raise RequestError(message)
        else:
            yield key, _unquoted(value.strip())


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _workload(values: Mapping[str, str], shape: tuple[tuple[str, tuple[int, ...]], ...]) -> Workload:
    default = Workload()
    slo_s = _converted(values, "slo", lambda text: parse_duration_s("slo", text))
    mode = _one_of("mode", values.get("mode", default.mode), get_args(Mode))
    if slo_s is not None and mode != "infer":
        _refuse("slo", "belongs to an inference job", values["slo"], "Add 'mode=infer' or remove the slo")
    for key in TRAINING_KEYS:
        if key in values and mode != "train":
            _refuse(key, "belongs to a training job", values[key], f"Remove {key!r} or 'mode={mode}'")
    if "generate" in values and mode != "infer":
        _refuse("generate", "belongs to an inference job", values["generate"], "Add 'mode=infer' or remove 'generate'")
    rate_per_s = _converted(values, "rate", _rate)
    if rate_per_s is not None and slo_s is None:
        _refuse("rate", "belongs to a latency limit", values["rate"], "Add 'slo=50ms' or remove the rate")
    precision = _one_of("precision", values.get("precision", default.precision), get_args(Precision))
    if precision in QUANTISED and mode != "infer":
        _refuse("precision", "of quantised weights belongs to an inference job", precision, "Add 'mode=infer'")
    return Workload(
        batch_size=_converted(values, "batch", lambda text: _count("batch", text)) or default.batch_size,
        mode=mode,
        precision=precision,
        optimizer=_one_of("optimizer", values.get("optimizer", default.optimizer), get_args(Optimizer)),
        shape=shape,
        steps=_converted(values, "steps", lambda text: _count("steps", text)),
        slo=None if slo_s is None else Slo(latency_s=slo_s, rate_per_s=rate_per_s),
        slowdown=_converted(values, "slowdown", _slowdown),
        alone=_alone(values),
        accumulate=_converted(values, "accumulate", lambda text: _count("accumulate", text)) or default.accumulate,
        trainable=_converted(values, "trainable", _trainable) or default.trainable,
        checkpointing=_one_of("checkpointing", values.get("checkpointing", "off"), ("on", "off")) == "on",
        generate=_converted(values, "generate", parse_generation),
        **_replicas(values),
        compile=_one_of("compile", values.get("compile", "off"), ("on", "off")) == "on",
    )


def _replicas(values: Mapping[str, str]) -> dict[str, Any]:
    """Return on how many GPUs a model is trained, and how it is divided between them."""
    gpus = _converted(values, "gpus", lambda text: _count("gpus", text)) or 1
    if gpus == 1 and "strategy" in values:
        cure = "Add 'gpus=4' or remove 'strategy'"
        _refuse("strategy", "belongs to training on several GPUs", values["strategy"], cure)
    strategy = _one_of("strategy", values.get("strategy", Workload().strategy), get_args(Strategy))
    return {"gpus": gpus, "strategy": strategy}


def parse_generation(text: str) -> Generation:
    """Return the tokens of ``512+128``: of the prompt, and new ones."""
    match = re.fullmatch(r"\s*([0-9]{1,7})\s*\+\s*([0-9]{1,7})\s*", text)
    prompt, new = (int(match[1]), int(match[2])) if match else (0, 0)
    if not prompt or not new:
        _refuse("generate", "must be tokens of the prompt and new tokens", text, "Write 'generate=512+128'")
    return Generation(prompt_tokens=prompt, new_tokens=new)


def parse_step_time(text: str) -> tuple[float, str]:
    """Return the seconds and the GPU of a measured step time such as ``30ms@a100``."""
    duration, _, gpu = text.partition("@")
    if not gpu.strip():
        _refuse("step_time", "must name the GPU that it was measured on", text, "Write 'step_time=30ms@a100'")
    return parse_duration_s("step_time", duration.strip(), "30ms@a100"), gpu.strip()


def parse_utilization(text: str) -> tuple[float, int | None]:
    """Return the share of 1 of a utilization such as ``60``, and the batch size of one such as ``60@32``.

    ``1`` is one percent, as nvidia-smi shows it; ``0.6`` may also be meant as a share of 1, and must have a ``%``.
    """
    shown, at, batch = (part.strip() for part in text.partition("@"))
    number = shown.removesuffix("%").rstrip()
    percent = float(number) if _DECIMAL.fullmatch(number) else math.nan
    if number == shown and "." in number and 0 < percent <= 1:
        hint = f"Write 'utilization={100 * percent:g}', or '{number}%' if that is meant"
        _refuse("utilization", "must be percent, and have a '%' where it could be a share of 1", text, hint)
    if not 0 < percent <= 100:  # noqa: PLR2004 - percent
        _refuse("utilization", "must be percent above 0, at most 100", text, "Write 'utilization=60'")
    if at and not re.fullmatch(r"[1-9][0-9]{0,8}", batch):
        _refuse("utilization", "must have a batch size after '@'", text, "Write 'utilization=60@32'")
    return percent / 100, int(batch) if at else None


def _alone(values: Mapping[str, str]) -> Alone:
    """Return what the user knows of a run alone on a whole GPU."""
    step_time_s, gpu = _converted(values, "step_time", parse_step_time) or (None, None)
    utilization, batch_size = _converted(values, "utilization", parse_utilization) or (None, None)
    return Alone(utilization=utilization, step_time_s=step_time_s, gpu=gpu, batch_size=batch_size)


def _slowdown(text: str) -> float:
    slowdown = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not 1 <= slowdown <= _MAXIMUM_SLOWDOWN:
        _refuse("slowdown", f"must be a number from 1 to {_MAXIMUM_SLOWDOWN}", text, "Write 'slowdown=1.25'")
    return slowdown


def _trainable(text: str) -> float:
    share = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not 0 < share <= 1:
        _refuse("trainable", "must be a share of the parameters, above 0 and at most 1", text, "Write 'trainable=0.02'")
    return share


def _converted(values: Mapping[str, str], key: str, convert: Callable[[str], Any]) -> Any:  # noqa: ANN401 - see below
    """Return the converted value of *key*, ``None`` where it was not given; its type is the converter's."""
    return convert(values[key]) if key in values else None


def _count(key: str, text: str) -> int:
    count = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else 0
    if not 1 <= count <= _MAXIMUM_COUNT:
        _refuse(key, "must be a whole number from 1 to 10^9", text, f"Write '{key}=64'")
    return count


def _rate(text: str) -> float:
    rate = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not rate > 0:
        _refuse("rate", "must be requests per second above 0", text, "Write 'rate=100'")
    return rate


def _one_of(key: str, text: str, known: tuple[str, ...]) -> Any:  # noqa: ANN401 - one of the literals of `known`
    word = usual_word(text, known)
    if word not in known:
        near = next((name for name in known if text.lower().startswith(name)), known[0])
        _refuse(key, f"must be one of {', '.join(known)}", text, f"Write '{key}={near}'")
    return word


def _refuse(key: str, rule: str, value: str, cure: str) -> NoReturn:
    message = f"Key {key!r} {rule}; got {value!r}. {cure}."
    raise RequestError(message)
