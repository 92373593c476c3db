"""The wheel of the source distribution, installed."""

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
def plain(sources: Path) -> Iterator[Installation]:
    """Return an installation of the wheel that anyone builds from the source distribution."""
    build("wheel", sources, checkout=sources)
    with tempfile.TemporaryDirectory(prefix="gpusage-plain.", dir="/tmp") as folder:
        yield install_wheel(next(sources.glob("*.whl")), Path(folder))
