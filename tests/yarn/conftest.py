"""Real YARN clusters for tests: a plain one that all tests share, and new ones for tests that change theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.yarn import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.yarn.hadoop import prepare_java
from gpusage_sandboxes.yarn.jar import build_jar

PLAN = ClusterPlan(nodes=parse_nodes("1xv100:2,1xa100:2,1xh100:2"))

NewCluster = Callable[..., Sandbox]
"""Called with a plan and, if need be, a folder; what it returns is taken down after the test."""


@pytest.fixture(scope="session")
def java() -> None:
    """Skip where there is no Java that Hadoop runs on, and none to be had."""
    try:
        prepare_java()
    except RequestError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def jar(java: None) -> Path:  # asked for to skip
    """Return our jar, built from this checkout."""
    return build_jar()


@pytest.fixture(scope="session")
def cluster(java: None) -> Iterator[Sandbox]:  # asked for to skip
    """Return the session's cluster: plain YARN, three GPU types, nothing of ours; a test leaves it as it was."""
    with start_sandbox(PLAN) as sandbox:
        yield sandbox


@pytest.fixture
def new_cluster(java: None) -> Iterator[NewCluster]:  # asked for to skip
    """Return a function that starts clusters of the test's own."""
    with ExitStack() as stack:

        def start(plan: ClusterPlan = PLAN, folder: Path | None = None) -> Sandbox:
            return stack.enter_context(start_sandbox(plan, folder=folder))

        yield start
