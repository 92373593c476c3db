"""Other words that users know for what gpusage has one word for: `float16`, `inference`; capitals do not matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "float32": "fp32",
        "float": "fp32",
        "float16": "fp16",
        "half": "fp16",
        "bfloat16": "bf16",
        "training": "train",
        "inference": "infer",
    }
)
"""By what users of PyTorch and of other tools write, in small letters."""


def usual_word(word: str, known: Sequence[str]) -> str:
    """Return the one of *known* that *word* means, and *word* itself where it means none of them."""
    small = word.lower()
    usual = SYNONYMS.get(small, small)
    return usual if usual in known else word
