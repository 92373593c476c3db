from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slurm-release", help="the Debian release whose Slurm the service tests run on; the host's own")


@pytest.fixture(scope="session")
def slurm_release(request: pytest.FixtureRequest) -> str | None:
    """Return the release that was asked for, ``None`` for the host's own."""
    release: str | None = request.config.getoption("--slurm-release", default=None)
    return release
