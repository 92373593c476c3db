"""The Java that a sandbox runs on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.yarn.hadoop import find_java, java_version


@pytest.mark.parametrize(("text", "version"), [('JAVA_VERSION="17.0.15"\n', 17), ('JAVA_VERSION="1.8.0_402"\n', 8)])
def test_the_version_of_a_jdk_is_read(tmp_path: Path, text: str, version: int) -> None:
    (tmp_path / "release").write_text(text)
    assert java_version(tmp_path) == version


def test_a_jdk_that_hadoop_does_not_run_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("javac", "mvn"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.touch(mode=0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="25"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/nowhere")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RequestError, match=r"must be of version 11 to 22 for Hadoop; .* has 25"):
        find_java()
