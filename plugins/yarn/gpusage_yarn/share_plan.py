"""The decision for an application, as our application master and the ResourceManager read it.

A plan travels as base64 of a flat JSON object of texts, in a variable of the application master's environment: bash
reads environment values once more, and base64 is what it leaves alone. ``Plan.java`` reads the same.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHARE = "gpusage.io/share"
"""The resource type of which one shared GPU has `WHOLE_GPU`, unless the site chose another name."""
WHOLE_GPU = 100
TYPE = "GPUSAGE"
"""The type of our master's applications."""
MAX_LABELS = 16
APPLICATION_ID = re.compile(r"application_[0-9]{1,20}_[0-9]{4,10}")
LABEL = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_-]{0,63}")


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
        apart: Whether no two containers run on one GPU, as libraries of parallel training require.
    """

    share: int
    threads: int = 0
    priority: int = 0
    labels: tuple[str, ...] = ()
    fallback_after_s: int = 0
    containers: int = 1
    memory_mib: int = 0
    vcores: int = 0
    rescue: bool = True
    apart: bool = False

    def texts(self) -> dict[str, str]:
        """Return the plan as it travels, all values texts."""
        return {
            "v": "1",
            "share": str(self.share),
            "threads": str(self.threads),
            "priority": str(self.priority),
            "labels": ",".join(self.labels),
            "fallback_after_s": str(self.fallback_after_s),
            "containers": str(self.containers),
            "memory_mib": str(self.memory_mib),
            "vcores": str(self.vcores),
            "rescue": str(int(self.rescue)),
            "apart": str(int(self.apart)),
        }

    def encoded(self) -> str:
        """Return the plan as the variable holds it."""
        return encode_texts(self.texts())


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
