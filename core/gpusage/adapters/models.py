"""Reading a model with the rights of its user."""

from __future__ import annotations

from gpusage.cli.cards.cached_advisor import with_cache
from gpusage.cli.cards.first_run import comment_of_run, runs_folder
from gpusage.cli.cards.job_card import card_of

__all__ = [
    "card_of",
    "comment_of_run",
    "runs_folder",
    "with_cache",
]
