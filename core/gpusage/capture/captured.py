"""A child's record, checked like all text of users: a card, and the keys of a job with their marks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpusage.boundary.printable_text import one_line, shortened
from gpusage.graphs.card.text import parse_document
from gpusage_hooks.comment import parse_model
from gpusage_hooks.errors import GraphError, RequestError
from gpusage_hooks.types import ModelGraph

MARKS = ("seen", "mapped", "guessed")
_RUN = ("batch", "mode", "precision", "generate", "compile", "layout", "gpus", "strategy")
KEYS = frozenset((*_RUN, "optimizer", "accumulate", "trainable", "checkpointing"))
_VALUE = re.compile(r"[\w.+-]{1,40}", re.ASCII)
_MAXIMUM_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The record of a program's run.

    Attributes:
        graph: Graph of a step; ``None`` if it could not be read.
        keys: Value and mark of each key of a job.
        modules: Class and weights of each module that a step calls.
        ending: Reason for the end: ``cycle``, ``inference``, ``by hand``, ``end``, ``time`` or ``failed``.
        graph_failure: Reason for a missing graph.
        real_calls: Modules that were called for real, with the reason.
    """

    graph: ModelGraph | None
    keys: Mapping[str, tuple[str, str]]
    modules: tuple[tuple[str, int], ...]
    ending: str
    graph_failure: str
    real_calls: Mapping[str, str]

    def comment(self, card: str) -> str:
        """Return the comment of the job, its model being the file *card*."""
        return ",".join([model_word(card), *(f"{name}={value}" for name, (value, _) in self.keys.items())])


def model_word(card: str) -> str:
    """Return the word of a comment for the file *card*, in quotes if the name has a separator."""
    quote = "'" if '"' in card else '"'
    return f"model={quote}{card}{quote}" if re.search(r"""[,;"']|^\s""", card) else f"model={card}"


def check_record(record: Mapping[str, Any]) -> Captured:
    """Return *record* as a `Captured`.

    Raises:
        RequestError: *record* has no model, or values that no program of ours sends.
    """
    try:
        keys = {str(name): (str(value), str(mark)) for name, (value, mark) in dict(record["keys"]).items()}
        # The child runs the user's program, which may write anything to our pipe.
        if not all(name in KEYS and _VALUE.fullmatch(value) and mark in MARKS for name, (value, mark) in keys.items()):
            raise ValueError("other keys or values")  # noqa: EM101, TRY003, TRY301 - worded below

        document = record.get("graph")
        captured = Captured(
            graph=None if document is None else parse_document(json.dumps(document).encode()),
            keys=keys,
            modules=tuple((_text(name), int(count)) for name, count in list(record["modules"])[:16]),
            ending=_text(record.get("ending", "")),
            graph_failure=_text(record.get("graph_failure", "")),
            real_calls={_text(name): _text(why) for name, why in dict(record.get("real_calls") or {}).items()},
        )
        # The keys must be good together, too: they become a job's comment.
        parse_model(captured.comment("captured.card.json"))
    except (KeyError, TypeError, ValueError, GraphError, RequestError) as error:
        message = f"Record of the program must be one that 'gpusage capture' sends; got {_text(error)}. Run it again."
        raise RequestError(message) from error

    return captured


def _text(value: object) -> str:
    return shortened(one_line(str(value)), _MAXIMUM_TEXT)
