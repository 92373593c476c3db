"""An advisor with a cache of its predictions below the user's cache folder.

A second submission of the same model and workload then predicts nothing, and does not even import the predictors.

Invariants:

1. A cached prediction is exact to the last bit; its key is the card, the workload, every field of the GPUs, and the
   source files of our predictors.
2. If a third-party plugin predicts, nothing is cached: we cannot see when it changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from gpusage.cli.cards.cache import read_own, source_files, user_cache, write_atomically
from gpusage.decisions.advisor import Advisor
from gpusage_hooks.job_keys import step_settings_of
from gpusage_hooks.types import Gpu, GpuNeed, ModelGraph, Workload

MAXIMUM_BYTES = 1024 * 1024

_FORMAT = "3"
_HOOKS = ("find_observed_figures", "predict_needs", "predict_slowdown")
_SOURCES = ("decisions/prediction.py", "devices/*", "graphs/*", "graphs/card/*", "predictors/**/*")
_DECODER = msgspec.json.Decoder(tuple[GpuNeed, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAdvisor(Advisor):
    """An advisor for one model, with a cache.

    Attributes:
        card: The card of the model.
        folder: The folder of the cached predictions.
    """

    card: str
    folder: Path

    def predict(self, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> tuple[GpuNeed, ...]:
        """Return the needs of *workload* on each of *gpus*, from the cache if they are there."""
        settings = (step_settings_of(workload), workload.alone)
        identity = (_FORMAT, self.card, settings, tuple(gpus), tuple(source_files(_SOURCES)))
        path = self.folder / hashlib.sha256(repr(identity).encode("utf-8", "replace")).hexdigest()

        needs: tuple[GpuNeed, ...] = ()
        with suppress(ValueError):  # the base class of msgspec's errors
            needs = _DECODER.decode(read_own(path, MAXIMUM_BYTES) or b"")
        # A key of SHA-256 does not clash, but a file may be damaged.
        if [need.gpu for need in needs] != [gpu.name for gpu in gpus]:
            needs = Advisor.predict(self, graph, workload, gpus)  # no super() in a class with slots
            write_atomically(path, msgspec.json.encode(needs).decode())
        return needs


def with_cache(advisor: Advisor, card: str) -> Advisor:
    """Return *advisor* with a cache for the model of *card*; unchanged if a third-party plugin predicts."""
    if not advisor.hooks.are_ours(*_HOOKS):
        return advisor
    # A cached prediction is of the model alone: what a site learned is no part of its key.
    own = {each.name: getattr(advisor, each.name) for each in fields(advisor) if each.name != "learned"}
    return CachedAdvisor(**own, card=card, folder=user_cache() / "needs")
