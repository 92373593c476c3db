"""Packages of one release with everything below them, fetched by a private apt, as any user, host untouched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpusage.boundary.operating_system import user_name
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes.host import Report, silent

_VERIFICATION_FIELDS = ("Signed-By", "Trusted", "Allow-Insecure", "Check-Valid-Until", "Check-Date")
_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>[^#]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSource:
    """One archive that apt fetches binary packages from.

    Attributes:
        verification: The fields that say how its signature is checked, as deb822 spells them.
    """

    uri: str
    suite: str
    components: tuple[str, ...]
    verification: tuple[tuple[str, str], ...] = ()


def parse_one_line(text: str) -> Iterator[PackageSource]:
    """Yield the archives of a ``sources.list``, in which each line is one."""
    for line in text.splitlines():
        match = _ONE_LINE.match(line.strip())
        if match:
            options = dict(word.split("=", 1) for word in (match["options"] or "").split() if "=" in word)
            yield PackageSource(
                uri=match["uri"],
                suite=match["suite"],
                components=tuple(match["components"].split()),
                verification=_verification({_canonical(key): value for key, value in options.items()}),
            )


def parse_deb822(text: str) -> Iterator[PackageSource]:
    """Yield the archives of a ``.sources`` file, in which a paragraph may name several."""
    for paragraph in re.split(r"\n(?:[ \t]*\n)+", text):
        fields = _fields(paragraph)
        if "deb" not in fields.get("Types", "").split() or fields.get("Enabled", "yes").strip().lower() == "no":
            continue
        for uri in fields.get("Uris", "").split():
            for suite in fields.get("Suites", "").split():
                components = tuple(fields.get("Components", "").split())
                yield PackageSource(uri=uri, suite=suite, components=components, verification=_verification(fields))


def render_deb822(source: PackageSource) -> str:
    """Return *source* as a paragraph of a ``.sources`` file."""
    head = f"Types: deb\nURIs: {source.uri}\nSuites: {source.suite}\nComponents: {' '.join(source.components)}\n"
    return head + "".join(f"{name}: {value}\n" for name, value in source.verification)


def read_host_sources(folder: Path = Path("/etc/apt")) -> tuple[PackageSource, ...]:
    """Return every archive in the host's apt configuration, in the order in which apt reads them."""
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    sources = [source for path in lists if path.is_file() for source in parse_one_line(_text(path))]
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        sources.extend(parse_deb822(_text(path)))
    return tuple(sources)


def read_os_release(path: Path = Path("/etc/os-release")) -> Mapping[str, str]:
    """Return the host's os-release as a mapping, empty where there is none."""
    if not path.is_file():
        return {}
    pairs = (line.split("=", 1) for line in _text(path).splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def choose_source(
    sources: Sequence[PackageSource], os_release: Mapping[str, str], release: str | None
) -> PackageSource:
    """Return the archive to take *release*, or the host's own release, from: the host's mirror.

    Raises:
        RequestError: The host's apt has no archive that could be asked.
    """
    codename = os_release.get("VERSION_CODENAME", "")
    plain = [source for source in sources if _is_distribution(source)]
    own = [source for source in plain if source.suite == codename] or plain
    if not own:
        message = (
            "The host's apt must name a Debian or Ubuntu archive with component main in /etc/apt; "
            f"got {len(sources)} sources, none such. Add one, or use a Debian or Ubuntu host."
        )
        raise RequestError(message)

    families = f"{os_release.get('ID', '')} {os_release.get('ID_LIKE', '')}".split()
    return PackageSource(
        uri=own[0].uri,
        suite=release or own[0].suite,
        components=("main", "universe") if "ubuntu" in families else ("main",),
        verification=own[0].verification,
    )


def _is_distribution(source: PackageSource) -> bool:
    """Return whether *source* is a release's main archive: not its updates, not a third party's, not a disc."""
    return "main" in source.components and not re.search(r"[-/]", source.suite) and not source.uri.startswith("cdrom")


def _fields(paragraph: str) -> dict[str, str]:
    """Return a deb822 paragraph's fields; a value keeps its continuation lines."""
    fields: dict[str, str] = {}
    name = ""

    for line in paragraph.splitlines():
        if line.startswith("#"):
            continue
        if line[:1] in " \t" and name:
            fields[name] += "\n" + line
        elif ":" in line:
            key, value = line.split(":", 1)
            name = _canonical(key.strip())
            fields[name] = value.strip()

    return fields


def _canonical(name: str) -> str:
    """Return a field's name as ``_VERIFICATION_FIELDS`` spells it: ``signed-by`` becomes ``Signed-By``."""
    return "-".join(word.capitalize() for word in name.split("-"))


def _verification(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, fields[name]) for name in _VERIFICATION_FIELDS if name in fields)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


_POLL_S = 0.1


def require_apt() -> None:
    """Raise unless the host has what the sandbox needs to fetch and unpack packages.

    Raises:
        RequestError: apt-get or dpkg is not there.
    """
    missing = [name for name in ("apt-get", "dpkg") if shutil.which(name) is None]
    if missing:
        message = (
            f"The sandbox needs apt-get and dpkg, as Debian and Ubuntu have them; {' and '.join(missing)} "
            "not found on PATH. Run it on a Debian or Ubuntu machine, or try gpusage on a cluster that exists."
        )
        raise RequestError(message)


def download(packages: Sequence[str], source: PackageSource, folder: Path, report: Report = silent) -> tuple[Path, ...]:
    """Fetch *packages* and all that they depend on from *source* into *folder*, and return the archives.

    What an interrupted run had fetched is used again.

    Raises:
        RequestError: apt cannot reach the archive, or the archive has no such packages.
    """
    report("index", 0, 1)
    options = _prepare(source, folder)
    _apt([*options, "update"], source)
    _apt([*options, "autoclean"], source)  # of an interrupted run, what the archive has replaced since
    wanted = parse_uris(_apt([*options, "install", "--print-uris", "--yes", *packages], source))
    archives = folder / "cache" / "archives"
    total = sum(wanted.values())
    command = ["apt-get", *options, "install", "--download-only", "--yes", *packages]

    with (folder / "download.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment())
        with process:
            while process.poll() is None:
                report("download", _fetched(archives), total)
                time.sleep(_POLL_S)

    if process.returncode != 0:
        raise _apt_error(source, (folder / "download.log").read_text(encoding="utf-8", errors="replace"))
    report("download", total, total)

    return tuple(sorted(archives.glob("*.deb")))


def parse_uris(text: str) -> dict[str, int]:
    """Return name and bytes of each archive that ``apt-get --print-uris`` lists."""
    lines = re.findall(r"^'[^']+' (\S+\.deb) (\d+)", text, flags=re.MULTILINE)
    return {name: int(size) for name, size in lines}


def unpack(archives: Sequence[Path], root: Path, report: Report = silent) -> None:
    """Unpack *archives* into *root*, without running their scripts."""
    root.mkdir(parents=True)
    for number, archive in enumerate(archives):
        report("unpack", number, len(archives))
        subprocess.run(["dpkg", "--extract", str(archive), str(root)], check=True, capture_output=True)
    report("unpack", len(archives), len(archives))


def _prepare(source: PackageSource, folder: Path) -> list[str]:
    """Make the folders that apt expects and return the options that keep it inside them."""
    for name in ("state/lists/partial", "cache/archives/partial", "sources.d", "preferences.d"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # An empty status file: for this apt nothing is installed, so it fetches everything below a package.
    (folder / "status").touch()
    (folder / "sources.d" / "sandbox.sources").write_text(render_deb822(source), encoding="utf-8")
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Cache::archives": "archives",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "sources.d",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": folder / "preferences.d",
        "APT::Sandbox::User": user_name(),
        "APT::Install-Recommends": "false",
        "APT::Get::List-Cleanup": "false",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }

    return ["--quiet=2", *(f"--option={name}={value}" for name, value in settings.items())]


def _apt(arguments: Sequence[str], source: PackageSource) -> str:
    command = ["apt-get", *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=_environment()
    )
    if done.returncode != 0:
        raise _apt_error(source, done.stderr or done.stdout)
    return done.stdout


def _apt_error(source: PackageSource, output: str) -> RequestError:
    """Return apt's output as one sentence with its first error."""
    complaints = re.findall(r"^[EW]: *(.+?)\.?$", output, flags=re.MULTILINE)
    complaint = complaints[0] if complaints else "no word from apt-get"
    message = (
        f"Release {source.suite!r} must be one that the host's own apt mirror has; apt-get says: {complaint}. "
        "Check the network and the release's name."
    )
    return RequestError(message)


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def _fetched(archives: Path) -> int:
    """Return the bytes fetched so far, files in flight included."""
    total = 0
    for path in (*archives.glob("*.deb"), *archives.glob("partial/*")):
        with suppress(FileNotFoundError):  # apt renames them under our feet
            total += path.stat().st_size
    return total
