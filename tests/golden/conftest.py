"""`pytest --update-golden` remakes the golden files; read the difference before you commit it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--update-golden", action="store_true", help="remake tests/golden/cli from what the commands print"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a comparison of a text with the golden file of a name, whole."""

    def compare(name: str, text: str) -> None:
        path = HERE / "cli" / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare
