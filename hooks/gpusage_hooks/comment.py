"""The words that a user writes to us: `model=resnet50.onnx,batch=64`, in a job's comment or on a command line.

A comment is ours when it begins with a model or one of our keys and names a model, and from a word `gpusage:` on, each
time up to the next `;`. Any other comment belongs to somebody else. What was clearly meant for us and is not of this
form is refused in one sentence, never silently left out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import gcd, prod
from types import MappingProxyType
from typing import Any

from gpusage_hooks.errors import RequestError
from gpusage_hooks.job_keys import JOB_KEYS, QUANTISED, make_workload
from gpusage_hooks.job_values import LORA_PRECISIONS, SWITCH, key_hint, refuse, usual_word
from gpusage_hooks.types import Mode, ModelRequest, Workload

MODEL_NAMES = ("*.onnx", "*.pt2", "*.card.json", "*config.json", "timm:*", "torchvision:*", "hf:*")
"""The names of the models that gpusage itself reads; the hook `describe_model_names` adds a plugin's."""

_JOBS: Mapping[Mode, str] = MappingProxyType({"train": "a training job", "infer": "an inference job"})
_OURS = re.compile(r"(?:^|[\s;,])gpusage:", re.IGNORECASE)
_ALMOST_OURS = re.compile(r"(?:^|[\s;,])gpusage[\s;,]+model=")
_ONLY_LEARN = re.compile(r"\s*learn=(\w+)\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
"""The submission client reads it; it names no model."""
_FIRST_RUN = re.compile(r"learn=on,(first_run=[^,;]+(?:,step_time=[^,;]+)?)")
"""The submission client writes it, of a script whose earlier runs are known."""
_QUOTED = re.compile(r"""(?:"[^"]*"|'[^']*')""")
_CLAUSE = re.compile(r"""(?:"[^"]*"|'[^']*'|[^;])*""")
_SLIP_RATIO = 0.8  # one letter of "model" too many, too few, another, or two exchanged
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""")


def parse_comment(text: str, names: Sequence[str] = MODEL_NAMES) -> ModelRequest | None:
    """Return the request in a job's comment, or ``None`` if it does not name gpusage.

    Args:
        text: The comment.
        names: How models are named here, `Context.model_names`.

    Raises:
        RequestError: It is addressed to us and malformed.
    """
    if parse_learn(text) is not None:
        return None

    # A comment may belong to a site's own tools, before and behind our words.
    marked = _OURS.search(text)
    if marked:
        return parse_model(_clause(text[marked.end() :]), names)

    # Without the mark, it must begin with a model or a key of ours, and name a model.
    text = text.strip()
    first, _, rest = re.sub(r"[,;]", ",", text).partition(",")
    names_model = is_model_name(first, names) and (not rest or _key(rest) in JOB_KEYS)
    names_model = names_model or (_key(first) in JOB_KEYS and re.search(r"(?:^|,)\s*model=", rest) is not None)
    if names_model or text.startswith(("model=", "gpusage=")):
        return parse_model(_clause(text), names)

    # A slip of a letter would be left to somebody else in silence.
    key, _, value = first.partition("=")
    is_close = difflib.SequenceMatcher(None, key.lower(), "model").ratio() >= _SLIP_RATIO
    if is_close and len(key) <= len("model") + 1 and is_model_name(value, names):
        message = f"Key {key!r} of comment {text!r} must be one that gpusage knows; got {key!r}. Did you mean 'model'?"
        raise RequestError(message)
    if _ALMOST_OURS.search(text):
        message = f"Comment {text!r} must have a ':' after 'gpusage'; got none. Write 'gpusage: model=PATH,batch=N'."
        raise RequestError(message)
    return None


def parse_learn(text: str) -> bool | None:
    """Return the switch ``learn`` of a comment that tells us nothing else; ``None`` of any other comment.

    Raises:
        RequestError: It is neither on nor off.
    """
    marked = _OURS.search(text)
    only_learn = _ONLY_LEARN.fullmatch(text[marked.end() :] if marked else text)
    if only_learn is None or not (marked or usual_word(only_learn[1], SWITCH) in SWITCH):
        return None
    return bool(JOB_KEYS["learn"].kind.parse("learn", only_learn[1].lower()))


def parse_first_run(text: str) -> ModelRequest | None:
    """Return a request without a model, of a job whose script has run before; ``None`` of any other comment.

    Raises:
        RequestError: It is malformed.
    """
    match = _FIRST_RUN.fullmatch(text)
    return parse_model(f"gpusage=off,{match[1]}") if match else None


def _key(text: str) -> str | None:
    """Return the key that *text* begins with."""
    key, separator, _ = text.strip().partition("=")
    return key if separator else None


def _clause(text: str) -> str:
    """Return *text* up to its first ``;`` outside quotes.

    Raises:
        RequestError: One of our keys follows it, where the user expects it to count.
    """
    # A path may hold a semicolon, if it is quoted.
    match = _CLAUSE.match(text)
    clause = match[0] if match else ""

    for part in text[len(clause) + 1 :].split(";"):
        if _key(part) in JOB_KEYS:
            whole = f"{clause.strip()},{part.strip()}"
            message = (
                f"Comment {text.strip()!r} must join its keys by ','; got ';' before {part.strip()!r}. Write {whole!r}."
            )
            raise RequestError(message)
    return clause


def is_model_name(word: str, names: Sequence[str] = MODEL_NAMES) -> bool:
    """Return whether *word* is a model's path or name and nothing else; `key=x.onnx` is somebody's setting."""
    alone = not re.search(r"[\s,;]|^\w+=", word)
    return alone and any(fnmatchcase(word, name) for name in names)


def is_model_path(model: str, names: Sequence[str] = MODEL_NAMES) -> bool:
    """Return whether *model* is a file or a folder, and no name such as `timm:resnet50`."""
    return not any(fnmatchcase(model, name) for name in names if name.endswith("*"))


def parse_model(text: str, names: Sequence[str] = MODEL_NAMES) -> ModelRequest:
    """Return the request in *text*: comma-separated ``key=value`` with the model first or as ``model=``.

    Raises:
        RequestError: A key is unknown or given twice, a value is malformed, or no model is named.
    """
    texts: dict[str, str] = {}
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for key, value in _pairs(text, names):
        if key == "shape":
            shapes.append(JOB_KEYS["shape"].kind.parse(key, value))
        elif key in texts:
            refuse(key, "must be given once", value, "Remove one of the two")
        else:
            texts[key] = value

    values: dict[str, Any] = {key: JOB_KEYS[key].kind.parse(key, text) for key, text in texts.items()}
    for key, rule, cure in contradictions(values, _spelled):
        refuse(key, rule, texts[key], cure)
    if "generate" in values:  # only a model that answers has tokens to generate, so the mode need not be written
        values.setdefault("mode", "infer")
    written = set(texts)
    if "lora" in written and values.get("precision") in LORA_PRECISIONS and "mixed" not in texts["precision"].lower():
        values["precision"] = LORA_PRECISIONS[values["precision"]]
        written.remove("precision")

    model, enabled = values.pop("model", ""), values.pop("gpusage", True)
    values.pop("learn", None)  # a job that names its model need not show it
    first_run = values.pop("first_run", "")
    if enabled and not model:
        message = f"Comment {text!r} must name a model; got none. Write 'model=PATH,batch=N'."
        raise RequestError(message)

    workload = make_workload({**values, "shape": tuple(shapes)})
    chosen = {"batch": workload.batch_size, "mode": workload.mode, "precision": workload.precision}
    return ModelRequest(
        model=model,
        workload=workload,
        named=tuple(texts),
        assumed=tuple(f"{key}={value}" for key, value in chosen.items() if key not in written),
        enabled=enabled,
        first_run=first_run,
    )


def _pairs(text: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield key and value of each comma-separated word; a first word without a key is the model."""
    if re.search("[\"']", _QUOTED.sub("", text)):
        message = f"Comment {text!r} must close every quote; got an open one. Add the missing quote."
        raise RequestError(message)

    # A first word with '=' is a key, unless it is quoted or as a whole named like a model: `runs/lr=1.onnx`.
    for index, word in enumerate(match.group().strip() for match in _WORD.finditer(text)):
        key, separator, value = word.partition("=")
        if not word:
            continue
        if index == 0 and key not in JOB_KEYS and (not separator or word[0] in "\"'" or is_model_name(word, names)):
            yield ("gpusage", "off") if word == "off" else ("model", _unquoted(word))
        elif key not in JOB_KEYS:
            rule = f"Key {key!r} of comment {text!r} must be one that gpusage knows"
            message = f"{rule}; got {word!r}. {key_hint(key, JOB_KEYS)}"
            raise RequestError(message)
        else:
            yield key, _unquoted(value.strip())


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _spelled(key: str, value: str = "") -> str:
    return repr(f"{key}={value}") if value else repr(key)


def contradictions(values: Mapping[str, Any], spell: Callable[..., str]) -> Iterator[tuple[str, str, str]]:
    """Yield each key of *values* that cannot stand beside the others, with the rule and the way out; the first counts.

    Args:
        values: By key, parsed. The arguments of the Python API keep to the same rules.
        spell: Returns a key, or a key and its value as a comment has it, as the user writes them.
    """
    mode: Mode = values.get("mode", "infer" if "generate" in values else Workload().mode)

    # Each key by itself: its mode, and the key without which it means nothing.
    why_infer = spell("mode", "infer") if "mode" in values else spell("generate")
    for key in values:
        row = JOB_KEYS[key]
        if mode not in row.modes:
            add = f"Add {spell('mode', 'infer')} or remove {spell(key)}"
            cure = add if mode == "train" else f"Remove {spell(key)} or {why_infer}"
            yield key, f"belongs to {_JOBS[row.modes[0]]}", cure
        if row.requires and row.requires not in values:
            of_copy = prod(values.get(name, 1) for name in ("tensor", "context", "pipeline", "expert"))
            count = of_copy if row.requires == "gpus" and of_copy > 1 else JOB_KEYS[row.requires].example
            cure = f"Add {spell(row.requires, str(count))} or remove {spell(key)}"
            yield key, f"must stand beside {spell(row.requires)}", cure

    # Only decoding divides a model among GPUs in inference, by tensor parallelism or, on request, in a pipeline.
    if values.get("gpus", 1) > 1 and mode == "infer" and "generate" not in values:
        yield "gpus", f"must stand beside {spell('generate')} in inference", f"Add {spell('generate', '512+128')}"
    if values.get("strategy") == "pipeline" and mode == "train":
        rule = f"must not be pipeline in training, where {spell('pipeline')} counts the stages"
        yield "strategy", rule, f"Write {spell('pipeline', '2')}"
    if values.get("strategy", "pipeline") != "pipeline" and mode == "infer":
        cure = f"Remove {spell('strategy')} or write {spell('strategy', 'pipeline')}"
        yield "strategy", "must be pipeline in inference", cure
    if "gpus" in values:  # the other keys that divide a job mean nothing without it
        yield from _indivisible_gpus(values, spell)

    # What is trained, and in which precision; a loop over shares of the parameters may end with all of them.
    divides = next((key for key in ("tensor", "expert") if values.get(key, 1) > 1), None)
    is_partial = values.get("trainable", 1) < 1
    if "lora" in values and divides:
        yield "lora", f"must not stand beside {spell(divides)}, which divides no adapters", "Remove one of the two"
    if "lora" in values and is_partial:
        yield "lora", f"must not stand beside {spell('trainable')}", "Remove one of the two"
    if values.get("precision") in QUANTISED and mode != "infer" and not (is_partial or "lora" in values):
        mixed = f"Write {spell('precision', 'fp8-mixed')}, or add" if values["precision"] == "fp8" else "Add"
        rule = "of quantised weights must stand beside adapters in training"
        yield "precision", rule, f"{mixed} {spell('lora', '16')} or {spell('mode', 'infer')}"
    if values.get("precision") == "fp8-mixed" and mode == "infer":
        yield "precision", "must be fp8-mixed in training alone", f"Write {spell('precision', 'fp8')}"


def _indivisible_gpus(values: Mapping[str, Any], spell: Callable[..., str]) -> Iterator[tuple[str, str, str]]:
    """Yield what keeps the GPUs of a job from being divided into as many groups as its *values* say."""
    if values["gpus"] > 1 and values.get("processes", 1) > 1:
        yield "processes", f"must not stand beside {spell('gpus')}, of which each runs one", "Remove one of the two"
    of_a_batch = prod(values.get(key, 1) for key in ("tensor", "context", "pipeline"))
    if values["gpus"] % of_a_batch:
        cure = f"Write {spell('gpus', str(of_a_batch))} or a multiple of it"
        yield "gpus", f"must be a multiple of tensor x context x pipeline, {of_a_batch}", cure

    # Context parallelism divides no weights, so its GPUs train the same ones.
    alike = values["gpus"] // (values.get("tensor", 1) * values.get("pipeline", 1))
    if alike % values.get("expert", 1):
        rule = f"must divide the number of GPUs that train the same weights, gpus / (tensor x pipeline) = {alike}"
        common = max(gcd(alike, values["expert"]), gcd(alike, 2))  # experts are mostly even
        cure = spell("expert", str(common)) if common > 1 else spell("gpus", str(values["gpus"] * values["expert"]))
        yield "expert", rule, f"Write {cure} or remove {spell('expert')}"
