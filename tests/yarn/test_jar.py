"""The jar's own tests, and what it is made of."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from gpusage_sandboxes.host import cache_folder
from gpusage_sandboxes.yarn.hadoop import find_java

pytestmark = pytest.mark.yarn

JAVA_8 = 52
POM = Path(__file__).resolve().parents[2] / "plugins" / "yarn" / "java" / "pom.xml"


def test_the_jars_own_tests_pass(jar: Path) -> None:  # built before, so that only tests are left
    java = find_java()
    repository = cache_folder().absolute() / "maven"
    command = [str(java.maven), "-q", "-B", f"-Dmaven.repo.local={repository}", "-f", str(POM), "surefire:test"]
    environment = java.maven_environment()
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.nightly
@pytest.mark.parametrize("version", ["3.4.0", "3.4.1", "3.4.3", "3.5.0"])
def test_the_sources_compile_against_each_hadoop_that_docs_name(java: None, tmp_path: Path, version: str) -> None:
    shutil.copy(POM, tmp_path)
    shutil.copytree(POM.parent / "src" / "main", tmp_path / "src" / "main")
    installation = find_java()
    repository = cache_folder().absolute() / "maven"
    command = [str(installation.maven), "-q", "-B", f"-Dmaven.repo.local={repository}", f"-Dhadoop.version={version}"]
    environment = installation.maven_environment()
    done = subprocess.run(
        [*command, "-f", str(tmp_path / "pom.xml"), "compile"],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_jar_holds_our_classes_for_java_8_and_nothing_else(jar: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        classes = [name for name in archive.namelist() if name.endswith(".class")]
        versions = {int.from_bytes(archive.read(name)[6:8], "big") for name in classes}
    assert versions == {JAVA_8}
    assert all(name.startswith("org/gpusage/yarn/") for name in classes)
    assert jar.stat().st_size < 150_000
