"""Cards that a user forged to fill the memory of a real gpusaged, or to keep its judge busy."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from gpusage.graphs.card.text import MAXIMUM_TEXT_BYTES

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

COUNT = int(os.environ.get("GPUSAGE_FORGED_CARDS", "20"))
"""Of each kind; CONTRIBUTING.md says how to try 1,000."""
BATCH_SIZES = 10 * COUNT
LIMIT_BYTES = 150e6


def forged(number: int, kinds: list[dict[str, Any]], nodes: int = 1) -> str:
    """Return a card of a chain of *nodes* nodes, of *kinds* in turn."""
    document = {
        "gpusage_card": 1,
        "name": f"m{number}",
        "source": f"m{number}",
        "parameter_count": 1,
        "fixed_batch_size": None,
        "inputs": [["x", [-1, 8]]],
        "unknown_op_types": [],
        "notes": [],
        "kinds": kinds,
        "nodes": [index % len(kinds) for index in range(nodes)],
        "producers": [[]] * nodes,
    }
    return base64.b64encode(zlib.compress(json.dumps(document, separators=(",", ":")).encode())).decode()


def kind(**fields: object) -> dict[str, Any]:
    """Return a kind of node that reads nothing."""
    return {"op": "Gemm", "in": [], "out": [[-1, 4]], **fields}


FORGERIES: dict[str, Callable[[int], str]] = {
    # one node with as many attributes as fit, each of 64 integers: 5,380 characters kept 8.7 MB
    "attributes": lambda n: forged(n, [kind(attr={f"a{i}": [1000 + n] * 64 for i in range(3100)})]),
    "just few enough attributes": lambda n: forged(
        n, [kind(op=f"G{j}", attr={f"a{i}": [1000 + n] * 64 for i in range(64)}) for j in range(48)], nodes=48
    ),
    "shapes": lambda n: forged(n, [kind(out=[[1000 + n, i] for i in range(2500)], op=f"G{j}") for j in range(8)], 8),
    "nodes": lambda n: forged(n, [kind()], nodes=49_000),  # the name tells them apart
    "kinds": lambda n: forged(n, [kind(op=f"Op{i}") for i in range(1_990)], nodes=19_900),
    "one KiB below what is remembered": lambda n: forged(n, [kind(op=f"Op{i}") for i in range(1_100)], nodes=1_100),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_memory_stays_below_150_mb_whatever_is_forged(daemon: Daemon, forgery: str) -> None:
    """What is kept of a card is weighed by its length, also where the predictors keep it."""
    for number in range(COUNT):
        text = FORGERIES[forgery](number)
        assert len(text) <= MAXIMUM_TEXT_BYTES
        assert daemon.ask(daemon.question(text, user_id=str(number)))["code"] in ("KEEP", "REWRITE")
    highest = daemon.highest_memory_bytes()
    print(f"{forgery}: {highest / 1e6:.0f} MB after {COUNT} cards")
    assert highest <= LIMIT_BYTES
    assert daemon.status()["lines"]["failed"] == 0
    assert daemon.ask()["code"] == "REWRITE"


def test_memory_stays_below_150_mb_whatever_batch_sizes_one_card_is_asked_for(daemon: Daemon) -> None:
    """What is worked out for a batch size is kept with the card's graph, which keeps the newest few."""
    text = FORGERIES["one KiB below what is remembered"](0)
    for number in range(BATCH_SIZES):
        fields = {"user_id": str(number), "comment": f"model=m0,batch={number + 1}"}  # one user's time would be spent
        assert daemon.ask(daemon.question(text, **fields))["code"] in ("KEEP", "REWRITE")
    highest = daemon.highest_memory_bytes()
    print(f"batch sizes: {highest / 1e6:.0f} MB after {BATCH_SIZES}")
    assert highest <= LIMIT_BYTES
    assert daemon.status()["lines"]["failed"] == 0


def test_one_users_slow_cards_do_not_keep_the_others_waiting(daemon: Daemon) -> None:
    """What is new of that user is kept at once, and the user is told; the others go on."""
    # How many it takes depends on the machine; time that passes while a card is forged would come back to the user.
    questions = [daemon.question(FORGERIES["kinds"](number), user_id="66") for number in range(40)]
    answers = (daemon.ask(question) for question in questions)
    refused = next(answer for answer in answers if "took more than 0.2 s of gpusaged's time" in answer["message"])
    assert refused["code"] == "KEEP"
    assert daemon.status()["lines"]["spent"] >= 1
    assert daemon.ask(daemon.question(daemon.card("another"), user_id="67"))["code"] == "REWRITE"
    spent = daemon.records()[1]
    assert (spent.decision.code.value, spent.rendered.before) == ("KEEP", "gres/gpu:1")


def test_reading_a_request_is_charged_to_its_user_as_well(daemon: Daemon) -> None:
    """Ten requests per second that were slow to read made the others' new models late, and nobody saw whose."""
    for number in range(8):
        daemon.ask(daemon.question(user_id="66", comment=f"model=toil.onnx,batch={number + 1}"))
    assert daemon.status()["lines"]["spent"] >= 1
    assert daemon.ask(daemon.question(user_id="67"))["code"] == "REWRITE"
