"""Real clusters for tests: one that all tests share, and new ones for tests that change theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpusage.boundary.operating_system import user_name
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.packages import require_apt
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox

PLAN = ClusterPlan(nodes=parse_nodes("2xv100:2,1xa100:2,1xh100:2"))

NewCluster = Callable[..., Sandbox]
"""Called with a plan and, if need be, a folder; what it returns is taken down after the test."""


@pytest.fixture(scope="session")
def slurm_release(request: pytest.FixtureRequest) -> str | None:
    """Return the release that `--slurm-release` names; a machine without apt has no Slurm to test on."""
    try:
        require_apt()
    except RequestError as error:
        pytest.skip(str(error))
    release: str | None = request.config.getoption("--slurm-release")
    return release


@pytest.fixture(scope="session")
def shared_cluster(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return the session's cluster: plain Slurm, three GPU types, nothing of ours installed."""
    with start_sandbox(PLAN, release=slurm_release) as sandbox:
        yield sandbox


@pytest.fixture
def cluster(shared_cluster: Sandbox) -> Iterator[Sandbox]:
    """Return the session's cluster with an empty queue; a test leaves its configuration as it was."""
    yield shared_cluster
    shared_cluster.run("scancel", f"--user={user_name()}")
    shared_cluster.wait_for_queue()


@pytest.fixture
def empty_queue(sandbox: Sandbox) -> Iterator[None]:
    """Leave no job to the next test, nor to the second try of one that failed, on a module's own cluster."""
    yield
    sandbox.run("scancel", f"--user={user_name()}")
    sandbox.wait_for_queue()


@pytest.fixture
def new_cluster(slurm_release: str | None) -> Iterator[NewCluster]:
    """Return a function that starts clusters of the test's own."""
    with ExitStack() as stack:

        def start(plan: ClusterPlan = PLAN, folder: Path | None = None) -> Sandbox:
            return stack.enter_context(start_sandbox(plan, folder=folder, release=slurm_release))

        yield start
