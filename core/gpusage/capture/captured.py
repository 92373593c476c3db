"""What a child sent, checked as anything of a user's: a card, the keys of a job, and how each is known."""

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
    """What a program showed.

    Attributes:
        graph: Of one step; ``None`` if it could not be read.
        keys: Value and mark of each key of a job.
        modules: Class and weights of each module that a step calls.
        ending: Why the run ended: ``cycle``, ``inference``, ``by hand``, ``end``, ``time`` or ``failed``.
        failure: What the program raised, in one line.
        graph_failure: Why there is no graph.
        real_calls: By module: why it was called for real.
        busy_s: Processor time from the first call of a model on.
    """

    graph: ModelGraph | None
    keys: Mapping[str, tuple[str, str]]
    modules: tuple[tuple[str, int], ...]
    ending: str
    failure: str
    graph_failure: str
    real_calls: Mapping[str, str]
    busy_s: float

    def comment(self, card: str) -> str:
        """Return the comment of the job, its model being the file *card*."""
        return ",".join([model_word(card), *(f"{name}={value}" for name, (value, _) in self.keys.items())])


def model_word(card: str) -> str:
    """Return the word of a comment that names the file *card*, in quotes if its name would not be one word."""
    quote = "'" if '"' in card else '"'
    return f"model={quote}{card}{quote}" if re.search(r"""[,;"']|^\s""", card) else f"model={card}"


def check_record(record: Mapping[str, Any]) -> Captured:
    """Return what *record* says.

    Raises:
        RequestError: It says nothing of a model, or what no program of ours sends.
    """
    try:
        keys = {str(name): (str(value), str(mark)) for name, (value, mark) in dict(record["keys"]).items()}
        # The child runs the user's program, which may write anything to our pipe.
        if not all(name in KEYS and _VALUE.fullmatch(value) and mark in MARKS for name, (value, mark) in keys.items()):
            raise ValueError("other keys or values")  # noqa: EM101, TRY003, TRY301 - worded below

        captured = Captured(
            graph=_graph(record.get("graph")),
            keys=keys,
            modules=tuple((_text(name), int(count)) for name, count in list(record["modules"])[:16]),
            ending=_text(record.get("ending", "")),
            failure=_text(record.get("failure", "")),
            graph_failure=_text(record.get("graph_failure", "")),
            real_calls={_text(name): _text(why) for name, why in dict(record.get("real_calls") or {}).items()},
            busy_s=float(record.get("busy_s") or 0),
        )
        # The keys must go together as in a comment, or the job that is submitted with them would fail.
        parse_model(captured.comment("captured.card.json"))
    except (KeyError, TypeError, ValueError, GraphError, RequestError) as error:
        message = f"Record of the program must be one that 'gpusage capture' sends; got {_text(error)}. Run it again."
        raise RequestError(message) from error

    return captured


def _graph(document: object) -> ModelGraph | None:
    return None if document is None else parse_document(json.dumps(document).encode())


def _text(value: object) -> str:
    return shortened(one_line(str(value)), _MAXIMUM_TEXT)
