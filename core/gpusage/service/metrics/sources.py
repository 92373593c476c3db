"""Whose counts the metrics are."""

from __future__ import annotations

from dataclasses import dataclass

from gpusage.service.aftercare import Aftercare
from gpusage.service.asks import Asks
from gpusage.service.recorder import Recorder
from gpusage.service.tallies import RunTally


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Those who count."""

    asks: Asks
    recorder: Recorder
    aftercare: Aftercare
    runs: RunTally
