"""The file of named models' cards: packed, unpacked, and the command that makes it."""

from __future__ import annotations

import subprocess
import sys

from gpusage_lab.zoo import make_named
from gpusage_lab.zoo.make_named import Contents, pack, unpack

LARGEST_BYTES = 2_000_000


def test_the_file_holds_what_was_packed_and_stays_small() -> None:
    content = make_named.TARGET.read_bytes()
    assert len(content) <= LARGEST_BYTES
    held = unpack(content)
    assert set(held.names.values()) <= set(held.cards)
    assert set(held.made_with) == set(make_named.LIBRARIES)
    shuffled = Contents(
        names=dict(reversed(held.names.items())), cards=dict(reversed(held.cards.items())), made_with=held.made_with
    )
    assert unpack(pack(shuffled)) == held


def test_the_same_cards_give_the_same_bytes() -> None:
    one = Contents(
        names={"timm:a": "timm:a@3", "timm:b": "timm:a@3"}, cards={"timm:a@3": "{}"}, made_with={"timm": "1"}
    )
    other = Contents(names=dict(reversed(one.names.items())), cards=one.cards, made_with=one.made_with)
    assert pack(one) == pack(other)


def test_the_command_that_remakes_the_file_is_there() -> None:
    command = [sys.executable, "-m", "gpusage_lab.zoo.make_named", "--help"]
    assert (
        "Make every card that is missing" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
