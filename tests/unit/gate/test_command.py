from __future__ import annotations

import pytest

from gpusage.gate.command import through_gate
from gpusage_hooks.errors import RequestError


@pytest.mark.parametrize(
    ("command", "gated"),
    [
        ("python train.py --lr 1", "python -m gpusage.gate.run train.py --lr 1"),
        (
            "/opt/bin/python3.11 -u -W error -X dev t.py -c",
            "/opt/bin/python3.11 -u -W error -X dev -m gpusage.gate.run t.py -c",
        ),
        ("python -m trainer -m x", "python -m gpusage.gate.run -m trainer -m x"),
    ],
)
def test_the_runner_stands_before_the_program(command: str, gated: str) -> None:
    assert " ".join(through_gate(command.split())) == gated


@pytest.mark.parametrize("command", ["torchrun t.py", "python", "python -c 1", "python -", "python -m", "python -u"])
def test_what_is_not_python_and_a_program_is_refused(command: str) -> None:
    with pytest.raises(RequestError, match="must be Python and a program"):
        through_gate(command.split())
