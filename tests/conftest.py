"""Options of the whole suite."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("gpusage", deadline=None)  # a busy machine is no counterexample
settings.load_profile("gpusage")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make test-versions` choose which Slurm the service tests run on."""
    parser.addoption(
        "--slurm-release",
        metavar="NAME",
        help="Debian or Ubuntu release whose Slurm the tests marked 'slurm' run on.  [default: the host's own]",
    )
