"""Where a cluster's ResourceManagers answer over HTTP, and gpusaged on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpusage.configuration import Configuration, DaemonSettings
from gpusage_hooks.errors import RequestError
from gpusage_yarn.hadoop_xml import SITE, conf_folder, read_settings
from gpusage_yarn.settings import YarnSettings

SOCKET = "gpusage.daemon.socket"
"""Hadoop's setting of where the ResourceManager asks gpusaged."""
_RM = "yarn.resourcemanager"
_PORTS = {"": ("http", "8088"), ".https": ("https", "8090")}


def find_addresses(settings: YarnSettings, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the addresses that a user *named*, else those of *settings*, else those of Hadoop; none where none is.

    Raises:
        RequestError: Hadoop's configuration cannot be read.
    """
    chosen = named or settings.rm_urls
    if chosen:
        return tuple(address if "://" in address else f"http://{address}" for address in chosen)
    return addresses_of(read_settings(conf_folder(settings.conf_dir) / SITE))


def require_addresses(settings: YarnSettings, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Return likewise.

    Raises:
        RequestError: There is none.
    """
    addresses = find_addresses(settings, named)
    if not addresses:
        folder = conf_folder(settings.conf_dir)
        message = (
            f"ResourceManager must be known; got none from {folder / SITE}. Set HADOOP_CONF_DIR, name it with "
            "--rm http://HOST:8088, or set rm_urls in the section [yarn] of gpusage.toml."
        )
        raise RequestError(message)
    return addresses


def sockets(configuration: Configuration | None, asked: str | None) -> tuple[str, ...]:
    """Return where gpusaged may listen, the likeliest first.

    Args:
        configuration: Ours; ``None`` where it is broken, while gpusaged goes on with the last good one.
        asked: Where the ResourceManager asks, as far as it tells.
    """
    ours = configuration.daemon.socket if configuration else ""
    return tuple(dict.fromkeys(path for path in (ours, asked, DaemonSettings().socket) if path))


def addresses_of(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses that yarn-site.xml's *settings* name, each ResourceManager of a pair where there is one."""
    kind = ".https" if settings.get("yarn.http.policy", "").strip() == "HTTPS_ONLY" else ""
    paired = settings.get(f"{_RM}.ha.enabled", "").strip().lower() == "true"
    identities = [word.strip() for word in settings.get(f"{_RM}.ha.rm-ids", "").split(",") if word.strip()]
    suffixes = [f".{identity}" for identity in identities] if paired and identities else [""]
    addresses = (_address(settings, kind, suffix) for suffix in suffixes)
    return tuple(dict.fromkeys(address for address in addresses if address))


def _address(settings: Mapping[str, str], kind: str, suffix: str) -> str:
    scheme, port = _PORTS[kind]
    whole = settings.get(f"{_RM}.webapp{kind}.address{suffix}", "").strip()
    host = settings.get(f"{_RM}.hostname{suffix}", "").strip()
    place = whole or (f"{host}:{port}" if host else "")
    place = place.replace("0.0.0.0:", f"{host}:") if host else place  # where it listens is no place to ask
    return f"{scheme}://{place}" if place else ""
