"""The Java that a sandbox runs on, and Maven: the host's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.cache import cache_folder, lock
from gpusage_sandboxes.packages import download, require_apt, unpack
from gpusage_sandboxes.progress import Report, silent
from gpusage_sandboxes.sources import PackageSource, choose_source, read_host_sources, read_os_release

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
    if not folder.is_dir():
        with lock(folder):
            if not folder.is_dir():  # another process may have built it while this one waited
                _build(folder, source, report)
    return _java(folder)


def _build(folder: Path, source: PackageSource, report: Report) -> None:
    """Build the installation beside its place and rename it into it."""
    fetched = folder.with_name(f".{folder.name}.apt")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    archives = _download(source, fetched, report)
    unpack([archive for archive in archives if _NEEDED.fullmatch(archive.name.partition("_")[0])], partial, report)
    tie_links(partial)
    _trust(partial)
    partial.rename(folder)
    shutil.rmtree(fetched)


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


def _trust(root: Path) -> None:
    """Give Java the host's certificate authorities, or the release's if the host has none."""
    java = _java(root)
    bundle = next((path for path in _CERTIFICATES if path.is_file()), None)
    if bundle is None:
        bundle = root / "certificates.pem"
        bundle.write_bytes(b"".join(_texts(sorted(root.glob("usr/share/ca-certificates/**/*.crt")))))
    store = java.home / "lib" / "security" / "cacerts"
    store.unlink(missing_ok=True)
    done = subprocess.run([java.program, _TRUST_STORE, bundle, store], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        output = " ".join(done.stderr.split())[:300]
        message = (
            f"Java must be able to read the certificates in {bundle}; it says: {output}. Install a JDK on the host."
        )
        raise RequestError(message)


def _texts(paths: Sequence[Path]) -> list[bytes]:
    return [path.read_bytes().rstrip(b"\n") + b"\n" for path in paths]


def _java(root: Path) -> Java:
    homes = sorted(root.glob("usr/lib/jvm/java-*-openjdk-*/bin/java"))
    if not homes:
        message = f"Folder {root} must hold the Java that was just unpacked; got none. Remove it and try again."
        raise RequestError(message)
    return Java(home=homes[0].parent.parent.resolve(), maven=root / "usr" / "share" / "maven" / "bin" / "mvn")
