"""`pytest --update-golden` remakes the golden files; read the difference before you commit it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from gpusage.decisions.advisor import advisor
from gpusage.plugins import loading
from gpusage.plugins.loading import PACKAGE, installed_managers

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--update-golden", action="store_true", help="remake tests/golden/cli from what the commands print"
    )


@pytest.fixture
def own_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Load the plugins that this checkout announces, whatever else is installed beside it."""

    def own_points(group: str) -> list[EntryPoint]:
        return [point for point in entry_points(group=group) if point.dist is not None and point.dist.name == PACKAGE]

    # What was loaded for other tests may hold plugins of others, and the same the other way.
    cached = (loading.load_hooks, advisor, installed_managers)
    monkeypatch.setattr(loading, "installed_entry_points", own_points)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a comparison of a text with the golden file of a name, whole."""

    def compare(name: str, text: str) -> None:
        path = HERE / "cli" / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare
