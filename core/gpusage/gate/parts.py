"""Light and heavy parts of a training step: a part is light where half of the GPU is enough for it.

A part is a module that calls no other, forward and backward. It is priced as a job is: by the same prediction from its
graph, corrected by the time that it took in one logged step (docs/decisions/gate.md).
"""

from __future__ import annotations

from dataclasses import dataclass

HALF_PERCENT = 50
LIGHT_PRICE = 1.25
"""What half a GPU may cost a light part; as `SharingRules.maximum_slowdown`."""
SHORT_S = 100e-6
"""To hold what ends sooner gains an inference job nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is known of one part of a step.

    Attributes:
        seconds: Of one forward and backward run.
        half_price: The predicted time on half a GPU over that on the whole; ``None`` where nothing predicts it.
    """

    seconds: float
    half_price: float | None = None

    @property
    def is_heavy(self) -> bool:
        """Return whether inference beside it would wait for it; a long part that nothing predicts is heavy."""
        return self.seconds >= SHORT_S and (self.half_price is None or self.half_price > LIGHT_PRICE)
