"""Hadoop's jars in a cache folder, laid out as a distribution's, fetched with Maven.

1. A finished installation is complete: it is built beside its place and renamed into it.
2. It is never changed afterwards, so any number of sandboxes, and of users, share it; only the class archive is added.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.cache import cache_folder, lock
from gpusage_sandboxes.progress import Report, silent
from gpusage_sandboxes.yarn.java import Java, prepare_java

_HERE = Path(__file__).parent
_POM = _HERE / "hadoop.pom.xml"
_JARS = 146  # with what they depend on; only progress is shown by it
_POLL_S = 0.1
VERSION = "3.4.2"


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag="gpusage.hadoop-installation/1", tag_field="schema"):
    """The contents of an installation's ``installation.json``."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hadoop:
    """Hadoop's YARN, ready to run.

    Attributes:
        version: Hadoop's own.
        folder: What HADOOP_HOME is set to.
        java: What it runs on.
    """

    version: str
    folder: Path
    java: Java

    @property
    def programs(self) -> Path:
        """The folder with `yarn`; goes on PATH."""
        return self.folder / "bin"

    @property
    def jars(self) -> Path:
        """The folder of all jars."""
        return _jars(self.folder)

    @property
    def classpath(self) -> str:
        """All jars by name, in an order that is always the same."""
        return ":".join(map(str, sorted(self.jars.glob("*.jar"))))

    @property
    def class_archive(self) -> Path:
        """What lets daemons start sooner; made on first use, and good without."""
        return self.folder / "classes.jsa"

    def environment(self) -> dict[str, str]:
        """Return the variables by which Hadoop's own scripts, classpaths and containers find it."""
        homes = ("HADOOP_HOME", "HADOOP_COMMON_HOME", "HADOOP_HDFS_HOME", "HADOOP_YARN_HOME", "HADOOP_MAPRED_HOME")
        return {**dict.fromkeys(homes, str(self.folder)), "JAVA_HOME": str(self.java.home)}


def prepare_hadoop(*, cache: Path | None = None, report: Report = silent) -> Hadoop:
    """Return Hadoop, fetched into the cache on first use.

    Raises:
        RequestError: Java or Maven cannot be had, or Maven cannot fetch the jars.
    """
    java = prepare_java(report=report)
    base = (cache or cache_folder()).absolute()
    folder = base / "hadoop" / VERSION
    if not _is_complete(folder):
        with lock(folder):
            if not _is_complete(folder):  # another process may have built it while this one waited
                _build(folder, java, base / "maven", report)
    return Hadoop(version=VERSION, folder=folder, java=java)


def _is_complete(folder: Path) -> bool:
    try:
        record = msgspec.json.decode((folder / "installation.json").read_bytes(), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return False
    return record.version == VERSION


def _build(folder: Path, java: Java, repository: Path, report: Report) -> None:
    """Build the installation beside its place and rename it into it."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "bin").mkdir(parents=True)
    _fetch(partial, java, repository, report)
    shutil.copy(_HERE / "yarn.sh", partial / "bin" / "yarn")
    (partial / "bin" / "yarn").chmod(0o755)
    (partial / "installation.json").write_bytes(msgspec.json.encode(_Record(version=VERSION)))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _fetch(folder: Path, java: Java, repository: Path, report: Report) -> None:
    """Let Maven fetch the jars and copy them to their place in *folder*."""
    jars = _jars(folder)
    command = [
        str(java.maven),
        "--quiet",
        "--batch-mode",
        f"--file={_POM}",
        f"-Dmaven.repo.local={repository}",
        f"-Dhadoop.version={VERSION}",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={jars}",
        "dependency:copy-dependencies",
    ]
    with (folder / "maven.log").open("w", encoding="utf-8") as log:
        environment = java.maven_environment()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment
        )
        with process:
            while process.poll() is None:
                report("fetch Hadoop", min(_JARS - 1, sum(1 for _ in repository.rglob("*.jar"))), _JARS)
                time.sleep(_POLL_S)
    if process.returncode != 0:
        raise _maven_error((folder / "maven.log").read_text(encoding="utf-8", errors="replace"))
    report("fetch Hadoop", _JARS, _JARS)


def _maven_error(output: str) -> RequestError:
    """Return Maven's output as one sentence with its first error."""
    complaints = re.findall(r"^\[ERROR\] *(?:Failed to execute goal )?(.+?)\.?$", output, flags=re.MULTILINE)
    first_error = complaints[0][:300] if complaints else "no word from mvn"
    message = (
        f"Maven must be able to fetch Hadoop {VERSION}; mvn says: {first_error}. "
        "Check the network and Maven's settings, then try again."
    )
    return RequestError(message)


def _jars(folder: Path) -> Path:
    return folder / "share" / "hadoop" / "common" / "lib"


_LISTS = "classes-%p.list"


def listing_options(folder: Path) -> tuple[str, ...]:
    """Return the options with which each daemon leaves the names of its classes in *folder* when it is stopped."""
    return (f"-XX:DumpLoadedClassList={folder / _LISTS}",)


def make_archive(hadoop: Hadoop, folder: Path) -> None:
    """Write the archive of the classes that are named in *folder*; where Java cannot, it is empty."""
    lists = [path.read_text(encoding="utf-8") for path in folder.glob(_LISTS.replace("%p", "*"))]
    names = dict.fromkeys(name for text in lists for name in class_names(text))
    class_list = folder / "classes"
    class_list.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    partial = hadoop.class_archive.with_suffix(f".{os.getpid()}")
    command = [
        str(hadoop.java.program),
        "-Xshare:dump",
        "-XX:-UsePerfData",  # or the dump leaves a file in the machine's own temporary folder
        "-XX:+UseSerialGC",
        f"-XX:SharedClassListFile={class_list}",
        f"-XX:SharedArchiveFile={partial}",
        "-classpath",
        hadoop.classpath,
    ]
    done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0 or not partial.is_file():
        partial.write_bytes(b"")
    partial.replace(hadoop.class_archive)


def class_names(text: str) -> Iterable[str]:
    """Yield the classes that a list of Java's names, without those made or loaded in a way of their own."""
    for line in text.splitlines():
        if line and line[0] not in "#@" and "source:" not in line:
            yield line.partition(" ")[0]
