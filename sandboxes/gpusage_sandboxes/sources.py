"""Where the host's own apt gets its packages from: both formats of /etc/apt, read and written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpusage_hooks.errors import RequestError

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
