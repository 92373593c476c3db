"""The target ``step_time``: seconds of one step, fitted and scored."""

from __future__ import annotations

from collections.abc import Sequence

from gpusage.learning.artifacts import Artifact
from gpusage.learning.tables import DataFolder
from gpusage.learning.targets import ScoreTable


def fit(_: DataFolder) -> Sequence[Artifact]:
    """Fit nothing yet."""
    return ()


def evaluate(_: DataFolder) -> Sequence[ScoreTable]:
    """Score nothing yet."""
    return ()
