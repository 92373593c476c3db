"""The card of a model that has none yet."""

from __future__ import annotations

from pathlib import Path

from gpusage.advisor import make_advisor
from gpusage.graphs.card.text import encode
from gpusage_hooks.types import ModelRequest


def new_card(wish: ModelRequest) -> str:
    """Return a new card of the model that *wish* names.

    Raises:
        GraphError: The model cannot be read, or is too irregular for a card.
    """
    model = str(Path(wish.model).expanduser()) if wish.model.startswith("~") else wish.model
    return encode(make_advisor().read(model, dict(wish.workload.shape)))
