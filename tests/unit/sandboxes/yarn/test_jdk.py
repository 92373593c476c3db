"""A Java in the cache folder, for hosts that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.yarn.hadoop import prepare_java, tie_links


def test_a_host_without_java_and_without_apt_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(RequestError, match=r"needs a JDK of version 11 to 22 and Maven; javac and mvn not found"):
        prepare_java()


def test_links_from_the_top_stay_inside_an_unpacked_file_system(tmp_path: Path) -> None:
    (tmp_path / "etc/java").mkdir(parents=True)
    (tmp_path / "etc/java/security").write_text("kept")
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/conf").symlink_to("/etc/java")
    (tmp_path / "usr/lib/near").symlink_to("conf/security")
    tie_links(tmp_path)
    assert (tmp_path / "usr/lib/conf").readlink() == Path("../../etc/java")
    assert (tmp_path / "usr/lib/near").read_text() == "kept"
