"""The two wheels of the source distribution, installed."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from installations import CHECKOUT, Installation, build, install_wheel


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source distribution, with no jar and no Maven in sight."""
    folder = tmp_path_factory.mktemp("sources")
    build("sdist", folder, checkout=CHECKOUT)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder)  # noqa: S202 - our own, made a moment ago
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.fixture(scope="session")
def plain_wheel(sources: Path) -> Path:
    """Return the wheel that anyone builds from the source distribution."""
    build("wheel", sources, checkout=sources)
    return next(sources.glob("gpusage-*.whl"))


@pytest.fixture(scope="session")
def plain(plain_wheel: Path) -> Iterator[Installation]:
    """Return an installation of the wheel that anyone builds."""
    with tempfile.TemporaryDirectory(prefix="gpusage-plain.", dir="/tmp") as folder:
        yield install_wheel(plain_wheel, Path(folder))


@pytest.fixture(scope="session")
def desk_wheel(sources: Path) -> Path:
    """Return the wheel `gpusage-desk`, built from the source distribution."""
    build("wheel", sources, checkout=sources / "release" / "desk")
    return next(sources.glob("gpusage_desk-*.whl"))


@pytest.fixture(scope="session")
def with_desk(plain_wheel: Path, desk_wheel: Path) -> Iterator[Installation]:
    """Return an installation of both wheels."""
    with tempfile.TemporaryDirectory(prefix="gpusage-desk.", dir="/tmp") as folder:
        yield install_wheel(plain_wheel, Path(folder), desk=desk_wheel)
