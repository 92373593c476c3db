"""Values of a job's keys: each kind reads the text that a user writes, and refuses another in one sentence.

Words of other tools mean what gpusage has one word for (`float16`, `inference`); capitals do not matter.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types.workloads import Decoding

# A comment comes from anybody who may submit a job: no value may make a prediction, or a message, endless.
MAXIMUM_COUNT = 10**9
MAXIMUM_NAMES = 64
SHOWN_LENGTH = 80
"""Of a value in an error: a user knows it by its beginning, and it may be a megabyte long."""
SWITCH = ("on", "off")
LORA_PRECISIONS: Mapping[str, str] = MappingProxyType({"fp16": "fp16-pure", "bf16": "bf16-pure"})
"""What half precision means beside adapters, if it is not written as mixed (``bf16-mixed``): 2 bytes."""

_SPELLINGS: Mapping[str, str] = {
    # PyTorch's dtypes, and Lightning's, accelerate's and Keras' words; torch.amp casts to float16 where nothing else is
    # written.
    "fp32": "float32 float 32 32-true",
    "fp16": "float16 half amp mixed 16 mixed_float16 fp16-mixed 16-mixed",
    "bf16": "bfloat16 mixed_bfloat16 bfloat16-mixed bf16-mixed",
    "fp16-pure": "16-true",
    "bf16-pure": "bf16-true",
    # Formats of 8 bits, and of 4 bits by litgpt's words for those of bitsandbytes and by the tools that make them
    "fp8": "float8",
    "fp8-mixed": "transformer-engine bf16_with_fp8_mixed",
    "nf4": "bnb.nf4 bnb.nf4-dq bnb.fp4 bnb.fp4-dq load_in_4bit",
    "bnb-int8": "bnb.int8 llm.int8 load_in_8bit",
    "int8": "int8_wo w8a16",
    "w8a8": "int8_sq smoothquant",
    "int4": "gptq awq int4_awq w4a16",
    # cuDNN's words for layouts, by their letters
    "channels_first": "nchw",
    "channels_last": "nhwc",
    # Programs that serve
    "tensorrt-llm": "trt-llm",
    "tensorrt": "trt",
    "vllm": "sglang",
    "train": "training",
    "infer": "inference",
    # Optimizers, by what they keep for each weight: one number or two
    "momentum": "nesterov sgdm lion rmsprop adagrad",
    "adam": "nadam radam adamax lamb",
    # transformers' TrainingArguments(optim=...)
    "adamw": "adamw_torch adamw_torch_fused adamw_hf paged_adamw_32bit paged_adamw",
    "adamw8bit": "adamw_8bit adamw_bnb_8bit paged_adamw_8bit",
    "adam8bit": "adam_8bit",
    "on": "yes true",
    "off": "no false",
}
SYNONYMS = {spelling: word for word, spellings in _SPELLINGS.items() for spelling in spellings.split()}
"""By what users of PyTorch and of other tools write, in small letters."""

_ALMOST = 0.9
"""How alike words are that differ in a sign or a letter, by `difflib`: so much that no shorter word was meant."""
# [0-9] and not \d, which also matches the digits of other scripts.
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_GBIT = re.compile(r" ?(gb/s|gbit/s|gbps)$", re.IGNORECASE)
BYTES_PER_GBIT = 1e9 / 8
_JOB_ID = "[A-Za-z0-9_.+-]{1,256}"
_NAME = r"[A-Za-z0-9][\w.:-]{0,63}"
_SIZES = re.compile(r"[0-9]{1,10}(?:x[0-9]{1,10})*")
_BATCH = "[1-9][0-9]{0,8}"
_DURATION = re.compile(rf"({_DECIMAL.pattern})\s*(us|ms|s)")
_SECONDS: Mapping[str, float] = MappingProxyType({"us": 1e-6, "ms": 1e-3, "s": 1.0})


def usual_word(word: str, known: Sequence[str]) -> str:
    """Return the word of *known* that *word* means, and *word* itself where it means none of them."""
    # Tools write the same word with a hyphen or an underscore: 16-mixed, bf16_mixed.
    small = word.lower()
    spellings = (small, small.replace("_", "-"), small.replace("-", "_"))
    return next((usual for one in spellings if (usual := SYNONYMS.get(one, one)) in known), word)


def key_hint(name: str, known: Iterable[str]) -> str:
    """Return the key of *known* that *name* means, or all of them, as a sentence.

    A name that begins with another's words, such as ``tensor_parallel``, is nearer than one that is as long.
    """
    names, small = list(known), name.lower()
    near = [one for one in names if f"{small}_".startswith(f"{one}_") or one.startswith(f"{small}_")]
    near = near or difflib.get_close_matches(small, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(names)}."


def refuse(key: str, rule: str, value: str, cure: str) -> NoReturn:
    """Refuse the *value* of *key*, which breaks *rule*; *cure* is the way out."""
    message = f"Key {key!r} {rule}; got {value[:SHOWN_LENGTH]!r}. {cure}."
    raise RequestError(message)


# Not msgspec: hooks depend on pluggy alone, and importing msgspec takes 40 ms of every sbatch.
@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return the JSON schema of a value, as a form that writes comments needs it."""
        return {"type": "string"}

    def parse(self, key: str, text: str) -> Any:  # noqa: ARG002 - each kind has a type of its own
        """Return the value of *key* that *text* says.

        Raises:
            RequestError: *text* is no such value.
        """
        return text


@dataclass(frozen=True, slots=True)
class JobId(Text):
    """The number of a job, in its manager's own form, or of several, with ``+`` between them."""

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return a string of these characters."""
        return {"type": "string", "pattern": f"^{_JOB_ID}$"}

    def parse(self, key: str, text: str) -> str:
        """Return the number."""
        if not re.fullmatch(_JOB_ID, text):
            refuse(key, "must be a job's number", text, f"Remove {key!r}: gpusage writes it")
        return text


@dataclass(frozen=True, slots=True)
class Count(Text):
    """A whole number from 1 to 10^9, such as *example*."""

    example: str

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return an integer and its limits."""
        return {"type": "integer", "minimum": 1, "maximum": MAXIMUM_COUNT}

    def parse(self, key: str, text: str) -> int:
        """Return the number."""
        count = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else 0
        if not 1 <= count <= MAXIMUM_COUNT:
            refuse(key, "must be a whole number from 1 to 10^9", text, f"Write '{key}={self.example}'")
        return count


@dataclass(frozen=True, slots=True)
class Words(Text):
    """One of several words, or another that users know for it."""

    choices: tuple[str, ...]

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return the words; their synonyms are left out."""
        return {"enum": list(self.choices)}

    def parse(self, key: str, text: str) -> Any:  # one of the literals of `choices`
        """Return the usual word."""
        word = usual_word(text, self.choices)
        if word in self.choices:
            return word

        # 'adamwx' is a slip of 'adamw', not 'adam' with something behind it; 'fp16_scaled' begins with what is meant.
        small = text.lower()
        near = difflib.get_close_matches(small, self.choices, n=1, cutoff=_ALMOST)
        near = near or [name for name in self.choices if small.startswith(name)]
        near = near or difflib.get_close_matches(small, self.choices, n=1)
        cure = f"Write '{key}={near[0]}'" if near else "Choose one of them"
        refuse(key, f"must be one of {', '.join(self.choices)}", text, cure)


@dataclass(frozen=True, slots=True)
class Switch(Text):
    """``on`` or ``off``."""

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return both words."""
        return {"enum": list(SWITCH)}

    def parse(self, key: str, text: str) -> bool:
        """Return whether it is on."""
        return bool(Words(SWITCH).parse(key, text) == "on")


@dataclass(frozen=True, slots=True)
class Number(Text):
    """A decimal number from ``least`` to ``most``; *rule* says so in words."""

    rule: str
    example: str
    least: float = 1e-9  # the smallest that can be written
    most: float = math.inf

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return a number and its limits."""
        return {"type": "number", "minimum": self.least} | ({"maximum": self.most} if self.most < math.inf else {})

    def parse(self, key: str, text: str) -> float:
        """Return the number."""
        number = float(text) if _DECIMAL.fullmatch(text) else math.nan
        if not self.least <= number <= self.most:
            refuse(key, f"must be {self.rule}", text, f"Write '{key}={self.example}'")
        return number


@dataclass(frozen=True, slots=True)
class Bandwidth(Number):
    """The bandwidth of a network in Gb/s, such as ``200``; the unit may be written, ``200Gb/s``."""

    rule: str = "a number of Gb/s above 0"
    example: str = "200"

    def parse(self, key: str, text: str) -> float:
        """Return bytes per second."""
        return Number.parse(self, key, _GBIT.sub("", text)) * BYTES_PER_GBIT


@dataclass(frozen=True, slots=True)
class Rate(Number):
    """A number of events per second, such as ``5``; the unit may be written, ``5/s``."""

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return a number, or a text with the unit."""
        number = Number.json_schema.__get__(self)
        return {**number, "type": ["number", "string"], "pattern": r"^[0-9.]+ ?/s$"}

    def parse(self, key: str, text: str) -> float:
        """Return the number."""
        return Number.parse(self, key, text.removesuffix("/s").rstrip())


@dataclass(frozen=True, slots=True)
class Duration(Text):
    """A time above 0 such as ``50ms``."""

    example: str = "50ms"

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return a number with its unit."""
        return {"type": "string", "pattern": f"^{_DURATION.pattern}$"}

    def parse(self, key: str, text: str) -> float:
        """Return the seconds."""
        match = _DURATION.fullmatch(text)
        if not match or float(match.group(1)) == 0:
            refuse(key, "must be a time above 0 in us, ms or s", text, f"Write '{key}={self.example}'")
        return float(match.group(1)) * _SECONDS[match.group(2)]


@dataclass(frozen=True, slots=True)
class StepTime(Text):
    """A measured step time such as ``30ms@a100``, or ``30ms@a100@32`` of batch 32."""

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return a time, ``@`` and the GPU, and ``@`` before a batch size."""
        return {"type": "string", "pattern": rf"^{_DURATION.pattern}\s*@[^@]+(@\s*{_BATCH}\s*)?$"}

    def parse(self, key: str, text: str) -> tuple[float, str, int | None]:
        """Return the seconds, the name of the GPU, and the batch size where one is named."""
        duration, _, rest = text.partition("@")
        gpu, at, batch = (part.strip() for part in rest.partition("@"))
        if not gpu:
            refuse(key, "must name the GPU that it was measured on", text, f"Write '{key}=30ms@a100'")
        if at and not re.fullmatch(_BATCH, batch):
            refuse(key, "must have a batch size after its GPU's '@'", text, f"Write '{key}=30ms@a100@32'")
        return Duration(example="30ms@a100").parse(key, duration.strip()), gpu, int(batch) if at else None


@dataclass(frozen=True, slots=True)
class Utilization(Text):
    """A GPU utilization such as ``60``, or ``60@32`` of batch 32.

    ``1`` is one percent, as nvidia-smi shows it; ``0.6`` may also be meant as a share of 1, and must have a ``%``.
    """

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return percent, and ``@`` before a batch size."""
        return {"type": "string", "pattern": rf"^{_DECIMAL.pattern}\s*%?\s*(@\s*{_BATCH}\s*)?$"}

    def parse(self, key: str, text: str) -> tuple[float, int | None]:
        """Return the share of 1, and the batch size where one is named."""
        shown, at, batch = (part.strip() for part in text.partition("@"))
        number = shown.removesuffix("%").rstrip()
        percent = float(number) if _DECIMAL.fullmatch(number) else math.nan

        # 0.6 is 60 % to PyTorch's users and 0.6 % as nvidia-smi shows it: a wrong guess would be off by a hundred.
        if number == shown and "." in number and 0 < percent <= 1:
            hint = f"Write '{key}={100 * percent:g}', or '{number}%' if that is meant"
            refuse(key, "must be percent, and have a '%' where it could be a share of 1", text, hint)
        if not 0 < percent <= 100:  # percent
            refuse(key, "must be percent above 0, at most 100", text, f"Write '{key}=60'")
        if at and not re.fullmatch(_BATCH, batch):
            refuse(key, "must have a batch size after '@'", text, f"Write '{key}=60@32'")
        return percent / 100, int(batch) if at else None


@dataclass(frozen=True, slots=True)
class Tokens(Text):
    """Tokens of the prompt and new ones, such as ``512+128``."""

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return both numbers with ``+`` between them."""
        return {"type": "string", "pattern": r"^[0-9]{1,7}\+[0-9]{1,7}$"}

    def parse(self, key: str, text: str) -> Decoding:
        """Return both numbers."""
        match = re.fullmatch(r"\s*([0-9]{1,7})\s*\+\s*([0-9]{1,7})\s*", text)
        prompt, new = (int(match[1]), int(match[2])) if match else (0, 0)
        if not prompt or not new:
            rule = "must be tokens of the prompt and new tokens, up to 9999999 each"
            refuse(key, rule, text, f"Write '{key}=512+128'")
        return Decoding(prompt_tokens=prompt, new_tokens=new)


@dataclass(frozen=True, slots=True)
class Sizes(Text):
    """Sizes of one free dimension or of a whole input: ``seq=128`` or ``input=3x224x224``."""

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return a name, ``=`` and the sizes."""
        return {"type": "string", "pattern": f"^[^=]+={_SIZES.pattern}$"}

    def parse(self, key: str, text: str) -> tuple[str, tuple[int, ...]]:
        """Return the name and the sizes."""
        name, _, sizes = text.partition("=")
        counts = tuple(map(int, sizes.split("x"))) if _SIZES.fullmatch(sizes) else ()
        if not name or not counts or not 1 <= min(counts) <= max(counts) <= MAXIMUM_COUNT:
            cure = f"Write '{key}=seq=128' or '{key}=input=3x224x224'"
            refuse(key, "must name sizes from 1 to 10^9, joined by 'x'", text, cure)
        return name, counts


@dataclass(frozen=True, slots=True)
class Names(Text):
    """One name or several, joined by ``+``: ``t4+v100``."""

    @property
    def json_schema(self) -> Mapping[str, object]:
        """Return names with ``+`` between them."""
        return {"type": "string", "pattern": rf"^{_NAME}(\+{_NAME})*$"}

    def parse(self, key: str, text: str) -> tuple[str, ...]:
        """Return each name once."""
        names = tuple(dict.fromkeys(name.strip() for name in text.split("+")))
        if len(names) > MAXIMUM_NAMES:
            refuse(key, f"must be at most {MAXIMUM_NAMES} names", text, f"Remove {len(names) - MAXIMUM_NAMES} of them")
        if not all(re.fullmatch(_NAME, name, re.ASCII) for name in names):
            refuse(key, "must be names joined by '+'", text, f"Write '{key}=t4+v100'")
        return names
