"""An advisor that keeps what it has predicted below the user's cache folder, beside the cards.

A second submission of one model in one way then predicts nothing, and does not even import what predicts.

Invariants:

1. What is kept is what was predicted, to the last bit; it holds for one card, one workload, GPUs by every figure of
   theirs, and our predictors as they lie on this disk.
2. Where a plugin of anyone else's predicts, nothing is kept: we cannot tell when it changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpusage.advisor import Advisor
from gpusage.cli.cards.cache import cached, keep, user_cache
from gpusage_hooks.types import Gpu, GpuNeed, ModelGraph, Workload

MAXIMUM_BYTES = 1024 * 1024

_FORMAT = "3"
_HOOKS = ("known_figures", "predict_needs", "predict_slowdown")
_PACKAGE = Path(__file__).resolve().parents[2]
_OURS = ("arithmetic.py", "prediction.py", "graphs/*", "graphs/card/*", "predictors/**/*")
_DECODER = msgspec.json.Decoder(tuple[GpuNeed, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAdvisor(Advisor):
    """Answers as any advisor does.

    Attributes:
        card: Of the one model that it is asked about.
        folder: Where predictions are kept.
    """

    card: str
    folder: Path

    def predict(self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> tuple[GpuNeed, ...]:
        """Return what *workload* needs on each of *gpus*, predicted now or kept from before."""
        path = self.folder / self._key(workload, gpus)
        needs = _read(path, gpus)
        if needs is None:
            needs = Advisor.predict(self, graph, workload, gpus)  # no super() in a class with slots
            keep(path, msgspec.json.encode(needs))
        return needs

    def _key(self, workload: Workload, gpus: Sequence[Gpu]) -> str:
        identity = (_FORMAT, self.card, workload, tuple(gpus), tuple(_files()))
        return hashlib.sha256(repr(identity).encode("utf-8", "replace")).hexdigest()


def remembering(advisor: Advisor, card: str) -> Advisor:
    """Return *advisor* with a memory for the model on *card*, or as it is where others' plugins predict."""
    if not advisor.hooks.are_ours(*_HOOKS):
        return advisor
    return CachedAdvisor(
        hooks=advisor.hooks,
        catalogue=advisor.catalogue,
        rules=advisor.rules,
        card=card,
        folder=user_cache() / "needs",
    )


def _read(path: Path, gpus: Sequence[Gpu]) -> tuple[GpuNeed, ...] | None:
    try:
        needs = _DECODER.decode(cached(path, MAXIMUM_BYTES) or b"")
    except ValueError:  # msgspec's errors are some
        return None
    return needs if [need.gpu for need in needs] == [gpu.name for gpu in gpus] else None


def _files() -> Iterator[tuple[str, int, int]]:
    """Yield something of each file of ours that a prediction rests on that changes when the file does."""
    for pattern in _OURS:
        for each in sorted(_PACKAGE.glob(pattern)):
            if each.suffix in {".py", ".json"}:
                status = each.stat()
                yield str(each.relative_to(_PACKAGE)), status.st_size, status.st_mtime_ns
