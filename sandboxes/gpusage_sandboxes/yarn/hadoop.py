"""Hadoop's jars in a cache folder, laid out as a distribution's, fetched with Maven; and the Java that they run on.

Java and Maven are the host's own, or come from its apt mirror into the cache. Of each installation in the cache:

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import Report, build_once, cache_folder, silent
from gpusage_sandboxes.packages import (
    PackageSource,
    choose_source,
    download,
    read_host_sources,
    read_os_release,
    require_apt,
    unpack,
)

_VERSIONS = range(11, 23)  # Hadoop 3.4.2 wants the options of 9 and later, and a class library of 22 and earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java with its compiler, and the Maven that goes with it.

    Attributes:
        home: What JAVA_HOME is set to.
        maven: The program.
    """

    home: Path
    maven: Path

    @property
    def program(self) -> Path:
        """The launcher."""
        return self.home / "bin" / "java"

    def maven_environment(self) -> dict[str, str]:
        """Return what Maven is run with: this Java, which leaves no file in the machine's own temporary folder."""
        options = f"{os.environ.get('MAVEN_OPTS', '')} -XX:-UsePerfData".strip()
        return {**os.environ, "JAVA_HOME": str(self.home), "MAVEN_OPTS": options}


def find_java() -> Java:
    """Return the host's JDK, from JAVA_HOME or PATH, and its Maven.

    Raises:
        RequestError: One of them is missing, or the JDK is of a version that Hadoop does not run on.
    """
    named = os.environ.get("JAVA_HOME")
    compiler = Path(named) / "bin" / "javac" if named else Path(shutil.which("javac") or "")
    maven = shutil.which("mvn")
    missing = [name for name, there in (("javac", compiler.is_file()), ("mvn", maven)) if not there]
    if missing or maven is None:
        message = (
            f"The YARN sandbox needs a JDK of version {_VERSIONS.start} to {_VERSIONS.stop - 1} and Maven; "
            f"{' and '.join(missing)} not found by JAVA_HOME and PATH. Install openjdk-17-jdk-headless and maven."
        )
        raise RequestError(message)

    home = compiler.resolve().parent.parent
    version = java_version(home)
    if version not in _VERSIONS:
        message = (
            f"The JDK must be of version {_VERSIONS.start} to {_VERSIONS.stop - 1} for Hadoop; {home} has {version}. "
            "Name another one with JAVA_HOME."
        )
        raise RequestError(message)

    return Java(home=home, maven=Path(maven))


def java_version(home: Path) -> int:
    """Return the major version of the Java in *home*, 0 where it does not say."""
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    if "JAVA_VERSION=" not in text:
        done = subprocess.run([home / "bin" / "java", "-version"], check=False, capture_output=True, text=True)
        text = done.stderr
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


_TRUST_STORE = Path(__file__).parent / "TrustStore.java"
_KITS = ("openjdk-17-jdk-headless", "openjdk-21-jdk-headless", "openjdk-11-jdk-headless")
_NEEDED = re.compile(r"openjdk-.*|maven|lib.*-java|ca-certificates")  # no desktop, no sound
_CERTIFICATES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))


def prepare_java(*, report: Report = silent) -> Java:
    """Return the host's JDK and Maven; where it has none that will do, those from the cache.

    Raises:
        RequestError: The host has none, and no apt to fetch them with.
    """
    try:
        return find_java()
    except RequestError:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise
    return prepare_jdk(report=report)


def prepare_jdk(*, cache: Path | None = None, report: Report = silent) -> Java:
    """Return a Java and a Maven from the cache, fetched from the host's own apt mirror on first use.

    Raises:
        RequestError: The host has no apt, or its mirror no such packages.
    """
    require_apt()
    source = choose_source(read_host_sources(), read_os_release(), None)
    folder = (cache or cache_folder()).absolute() / "jdk" / source.suite

    def build(partial: Path) -> None:
        fetched = folder.with_name(f".{folder.name}.apt")
        archives = _download(source, fetched, report)
        unpack([archive for archive in archives if _NEEDED.fullmatch(archive.name.partition("_")[0])], partial, report)
        tie_links(partial)

        java = _java_below(partial)
        bundle = next((path for path in _CERTIFICATES if path.is_file()), None)
        if bundle is None:
            bundle = partial / "certificates.pem"
            certificates = sorted(partial.glob("usr/share/ca-certificates/**/*.crt"))
            bundle.write_bytes(b"".join(path.read_bytes().rstrip(b"\n") + b"\n" for path in certificates))
        store = java.home / "lib" / "security" / "cacerts"
        store.unlink(missing_ok=True)
        done = subprocess.run([java.program, _TRUST_STORE, bundle, store], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            output = " ".join(done.stderr.split())[:300]
            message = (
                f"Java must be able to read the certificates in {bundle}; it says: {output}. Install a JDK on the host."
            )
            raise RequestError(message)

        shutil.rmtree(fetched)

    build_once(folder, folder.is_dir, build)
    return _java_below(folder)


def _download(source: PackageSource, folder: Path, report: Report) -> tuple[Path, ...]:
    """Fetch Maven with the first kit that the release has."""
    for kit in _KITS[:-1]:
        with suppress(RequestError):
            return download((kit, "maven", "ca-certificates"), source, folder, report)
    return download((_KITS[-1], "maven", "ca-certificates"), source, folder, report)


def tie_links(root: Path) -> None:
    """Make each link of an unpacked file system that names a place from the top lead to that place below *root*."""
    for folder, folders, files in os.walk(root):
        for path in (Path(folder) / name for name in (*folders, *files)):
            target = str(path.readlink()) if path.is_symlink() else ""
            if target.startswith("/"):
                path.unlink()
                path.symlink_to(os.path.relpath(root / target[1:], path.parent))


def _java_below(root: Path) -> Java:
    homes = sorted(root.glob("usr/lib/jvm/java-*-openjdk-*/bin/java"))
    if not homes:
        message = f"Folder {root} must hold the Java that was just unpacked; got none. Remove it and try again."
        raise RequestError(message)
    return Java(home=homes[0].parent.parent.resolve(), maven=root / "usr" / "share" / "maven" / "bin" / "mvn")


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

    def is_complete() -> bool:
        try:
            record = msgspec.json.decode((folder / "installation.json").read_bytes(), type=_Record)
        except (OSError, msgspec.MsgspecError):
            return False
        return record.version == VERSION

    def build(partial: Path) -> None:
        (partial / "bin").mkdir(parents=True)
        _fetch(partial, java, base / "maven", report)
        shutil.copy(_HERE / "yarn.sh", partial / "bin" / "yarn")
        (partial / "bin" / "yarn").chmod(0o755)
        (partial / "installation.json").write_bytes(msgspec.json.encode(_Record(version=VERSION)))

    build_once(folder, is_complete, build)
    return Hadoop(version=VERSION, folder=folder, java=java)


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
        output = (folder / "maven.log").read_text(encoding="utf-8", errors="replace")
        complaints = re.findall(r"^\[ERROR\] *(?:Failed to execute goal )?(.+?)\.?$", output, flags=re.MULTILINE)
        message = (
            f"Maven must be able to fetch Hadoop {VERSION}; mvn says: "
            f"{complaints[0][:300] if complaints else 'no word from mvn'}. "
            "Check the network and Maven's settings, then try again."
        )
        raise RequestError(message)

    report("fetch Hadoop", _JARS, _JARS)


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
