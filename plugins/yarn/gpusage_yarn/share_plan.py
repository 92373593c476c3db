"""The decision for an application, as our application master and the ResourceManager read it.

A plan travels as base64 of a flat JSON object of texts, in a variable of the application master's environment: bash
reads environment values once more, and base64 is what it leaves alone. ``Plan.java`` reads the same.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from gpusage_hooks.errors import RequestError

SHARE = "gpusage.io/share"
"""The resource type of which one shared GPU has `WHOLE_GPU`, unless the site chose another name."""
WHOLE_GPU = 100
TYPE = "GPUSAGE"
"""The type of our master's applications."""
MAX_LABELS = 16
MAX_CONTAINERS = 10_000
MAX_NODES = 64
APPLICATION_ID = re.compile(r"application_[0-9]{1,20}_[0-9]{4,10}")
LABEL = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_-]{0,63}")

# The limits below are Plan.java's as well.
_MAX_CHARACTERS = 16 * 1024
_VERSION = "1"
_NUMBER = re.compile(r"[0-9]{1,9}")
_NODE = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z._-]{0,254}:[0-9]{1,5}")
_NEED = re.compile(r"[0-9a-z.,:=+-]{0,400}")
_IDENTITY = re.compile(r"[0-9a-zA-Z._:-]{0,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The share of a GPU for each of an application's containers, and on which generations.

    Attributes:
        share: Hundredths of one GPU, 1 to 100.
        threads: The most of a GPU's threads, in percent, that a container's processes may use; 0 for its share.
        priority: MPS's for a container's processes: 0 normal, 1 below normal.
        labels: Node labels, best first; none where any node will do.
        fallback_after_s: After how long without a container the next label is tried; 0 for never.
        containers: How many run the user's command.
        memory_mib: Of a container's host memory; 0 where nothing was said.
        vcores: Of a container; 0 where nothing was said.
        rescue: Whether a command whose share has too little GPU memory runs once more, with a whole GPU.
        need: What a container needs of its GPU and promises, by `describe_need`; empty where unknown.
        avoid: Nodes, ``host:port``, that containers keep off while another one has room.
    """

    share: int
    identity: str = ""
    threads: int = 0
    priority: int = 0
    labels: tuple[str, ...] = ()
    fallback_after_s: int = 0
    containers: int = 1
    memory_mib: int = 0
    vcores: int = 0
    rescue: bool = True
    need: str = ""
    avoid: tuple[str, ...] = ()

    def texts(self) -> dict[str, str]:
        """Return the plan as it travels, all values texts."""
        return {
            "v": _VERSION,
            "id": self.identity,
            "share": str(self.share),
            "threads": str(self.threads),
            "priority": str(self.priority),
            "labels": ",".join(self.labels),
            "fallback_after_s": str(self.fallback_after_s),
            "containers": str(self.containers),
            "memory_mib": str(self.memory_mib),
            "vcores": str(self.vcores),
            "rescue": str(int(self.rescue)),
            "need": self.need,
            "avoid": ",".join(self.avoid),
        }

    def encoded(self) -> str:
        """Return the plan as the variable holds it."""
        return encode_texts(self.texts())


def parse_plan(text: str) -> Plan:
    """Return the plan in *text*, the base64 form.

    Raises:
        RequestError: It is none.
    """
    if len(text) > _MAX_CHARACTERS:
        _refuse("text", f"have at most {_MAX_CHARACTERS} characters", f"{len(text)} characters")

    try:
        texts = json.loads(base64.b64decode(text, validate=True).decode())
    except (binascii.Error, ValueError, RecursionError):
        _refuse("text", "be base64 of a flat JSON object of texts", text)
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        _refuse("text", "be base64 of a flat JSON object of texts", text)
    return plan_of(texts)


def plan_of(texts: Mapping[str, str]) -> Plan:
    """Return the plan that *texts* describe.

    Raises:
        RequestError: A value is missing, malformed or out of its range.
    """
    if texts.get("v") != _VERSION:
        _refuse("v", f"be {_VERSION}", texts.get("v"))
    if not _IDENTITY.fullmatch(texts.get("id", "")):
        _refuse("id", "have at most 64 letters, digits and ._:-", texts["id"])
    if not _NEED.fullmatch(texts.get("need", "")):
        _refuse("need", "have at most 400 small letters, digits and .,:=+-", texts["need"])

    return Plan(
        identity=texts.get("id", ""),
        share=_number(texts, "share", None, (1, WHOLE_GPU)),
        threads=_number(texts, "threads", "0", (0, WHOLE_GPU)),
        priority=_number(texts, "priority", "0", (0, 1)),
        labels=_names(texts, "labels", LABEL, MAX_LABELS, "node labels"),
        fallback_after_s=_number(texts, "fallback_after_s", "0", (0, 7 * 86400)),
        containers=_number(texts, "containers", "1", (1, MAX_CONTAINERS)),
        memory_mib=_number(texts, "memory_mib", "0", (0, 1 << 24)),
        vcores=_number(texts, "vcores", "0", (0, 10_000)),
        rescue=_number(texts, "rescue", "1", (0, 1)) == 1,
        need=texts.get("need", ""),
        avoid=_names(texts, "avoid", _NODE, MAX_NODES, "nodes host:port"),
    )


def encode_texts(texts: Mapping[str, str]) -> str:
    """Return *texts* as our variables hold them."""
    return encode(json_of(texts))


def json_of(texts: Mapping[str, str]) -> str:
    """Return *texts* as a flat JSON object."""
    return json.dumps(dict(texts), separators=(",", ":"), ensure_ascii=False)


def encode(text: str) -> str:
    """Return *text* in base64."""
    return base64.b64encode(text.encode()).decode("ascii")


def usable_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the *labels* that a plan can name, each once."""
    return tuple(label for label in dict.fromkeys(labels) if LABEL.fullmatch(label))[:MAX_LABELS]


def usable_nodes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the *names* that a plan can name."""
    return tuple(name for name in names if _NODE.fullmatch(name))[:MAX_NODES]


def _number(texts: Mapping[str, str], key: str, absent: str | None, limits: tuple[int, int]) -> int:
    text = texts.get(key, absent)
    least, most = limits
    if text is None or not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        _refuse(key, f"be a whole number from {least} to {most}", text)
    return int(text)


def _names(texts: Mapping[str, str], key: str, pattern: re.Pattern[str], most: int, what: str) -> tuple[str, ...]:
    text = texts.get(key, "")
    names = tuple(dict.fromkeys(text.split(","))) if text else ()
    if len(names) > most or not all(map(pattern.fullmatch, names)):
        _refuse(key, f"be at most {most} {what} with commas between them", text)
    return names


def _refuse(key: str, rule: str, value: object) -> NoReturn:
    shown = "nothing" if value is None else ascii(str(value)[:40])
    message = f"Plan's {key} must {rule}; got {shown}. Make the plan again with gpusage yarn submit."
    raise RequestError(message)
