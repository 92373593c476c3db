"""Options of the whole suite."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

# One thread in each process, before any library is imported: as many tests run as there are processors, and threads of
# PyTorch, scikit-learn and NumPy that wait for one another take more of them than the work (46 s, not 20, of lab's).
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

from gpusage.plugins import loading

settings.register_profile("search", deadline=None)  # a busy machine is no counterexample
# What lands must not depend on a draw: every run tries the same examples, and the nightly run searches for new ones.
settings.register_profile("gpusage", settings.get_profile("search"), derandomize=True)
settings.load_profile("gpusage")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make test-versions` choose which Slurm the service tests run on."""
    parser.addoption(
        "--slurm-release",
        metavar="NAME",
        help="Debian or Ubuntu release whose Slurm the tests marked 'slurm' run on.  [default: the host's own]",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test was run again: the second run may fail for another reason, left by the first."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[EntryPoint], None]]:
    """Return what makes one plugin the only one that is installed here."""

    def only(point: EntryPoint) -> None:
        monkeypatch.setattr(loading, "installed_entry_points", lambda group: [point])
        loading.load_hooks.cache_clear()

    yield only
    loading.load_hooks.cache_clear()
