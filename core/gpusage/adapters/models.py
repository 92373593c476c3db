"""Reading a model with the rights of its user."""

from __future__ import annotations

from gpusage.cli.cards.cached_advisor import with_cache
from gpusage.cli.cards.job_card import card_of

__all__ = [
    "card_of",
    "with_cache",
]
