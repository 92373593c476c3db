"""Files that reach the nodes through HDFS: put there over WebHDFS, once for each content.

Invariants:

1. A file lies below the user's home in a folder named after its content, so that nothing is ever written over, a
   file that was sent before is not sent again, and its time of change, which YARN compares, stays.
2. It comes to its name by a rename: nobody sees half of it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import requests

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.configuration import read_settings
from gpusage_yarn.cluster.resource_manager import configured_session

FOLDER = ".gpusage"
_TIMEOUT_S = (3.05, 60.0)
_BLOCK_BYTES = 1 << 20
_MISSING, _FIRST_ERROR = 404, 400


class Hdfs:
    """A client of an HDFS.

    Args:
        url: Its name, for example ``hdfs://cluster``.
        addresses: Its NameNodes' over HTTP; the active one is found among them.
        user: Whose files they are.
    """

    def __init__(self, url: str, addresses: tuple[str, ...], user: str) -> None:
        self.url, self.addresses, self._user = url, addresses, user
        self._session = configured_session(requests.Session())

    def upload(self, path: Path) -> str:
        """Put a file there unless it is there already, and return ``URL bytes milliseconds`` as YARN wants it.

        Raises:
            RequestError: No NameNode takes it, or the file cannot be read.
        """
        digest = hashlib.sha256()
        try:
            with path.open("rb") as content:
                while block := content.read(_BLOCK_BYTES):
                    digest.update(block)
        except OSError as error:
            message = f"File {str(path)!r} must be readable; got: {error.strerror}. Check --file."
            raise RequestError(message) from error

        # The content's digest is in the path, so that a name never stands for another content.
        home = self._request("GET", "/", "GETHOMEDIRECTORY")["Path"]
        place = f"{home}/{FOLDER}/{digest.hexdigest()}/{path.name}"
        status = self._status(place)
        if status is None:
            partial = f"{place}.{secrets.token_hex(8)}"

            # Without a redirect the DataNode's address comes in the answer, and the content is sent once.
            target = self._request("PUT", partial, "CREATE", noredirect="true", permission="600")["Location"]
            with path.open("rb") as content:
                _parse_response(self._session.put(target, data=content, timeout=_TIMEOUT_S), target)

            # Where the rename fails another submission was faster with the same content.
            if not self._request("PUT", partial, "RENAME", destination=place).get("boolean"):
                self._request("DELETE", partial, "DELETE")
            status = self._status(place) or {}
        return f"{self.url}{quote(place)} {status.get('length')} {status.get('modificationTime')}"

    def _status(self, place: str) -> Mapping[str, Any] | None:
        try:
            status: Mapping[str, Any] = self._request("GET", place, "GETFILESTATUS")["FileStatus"]
        except FileNotFoundError:
            return None
        return status

    def _request(self, method: str, place: str, action: str, **parameters: str) -> Mapping[str, Any]:
        """Return the answer of the active NameNode."""
        troubles = []
        for address in self.addresses:
            url = f"{address}/webhdfs/v1{quote(place)}"
            parameters = {"op": action, "user.name": self._user, **parameters}
            try:
                return _parse_response(self._session.request(method, url, params=parameters, timeout=_TIMEOUT_S), url)
            except (requests.RequestException, RequestError) as error:
                troubles.append(f"{address}: {error if isinstance(error, RequestError) else type(error).__name__}")

        message = f"HDFS must take --file; got: {'; '.join(troubles)}. Check {self.url}."
        raise RequestError(message)


def find_hdfs(folder: Path, user: str) -> tuple[Hdfs | None, str]:
    """Return the HDFS that Hadoop's configuration in *folder* names; ``None``, and why where that is worth a word.

    Raises:
        RequestError: The configuration cannot be read.
    """
    core = read_settings(folder / "core-site.xml")
    settings = {**core, **read_settings(folder / "hdfs-site.xml")}
    url = urlsplit(core.get("fs.defaultFS", ""))
    if url.scheme != "hdfs" or not url.hostname:
        return None, ""
    if core.get("hadoop.security.authentication", "simple").strip() == "kerberos":
        why = "a submission carries no delegation tokens for an HDFS with Kerberos"
        return None, f"{why}: the nodes read --file at its own path, where it must lie for them as well"

    # The NameNodes over HTTP: of a pair both, else the one; the ports are Hadoop's defaults.
    is_secure = settings.get("dfs.http.policy", "").strip() == "HTTPS_ONLY"
    scheme, port = ("https", 9871) if is_secure else ("http", 9870)
    nodes = [name.strip() for name in settings.get(f"dfs.ha.namenodes.{url.netloc}", "").split(",") if name.strip()]
    addresses = []
    for suffix in [f".{url.netloc}.{name}" for name in nodes] or [""]:
        place = settings.get(f"dfs.namenode.{scheme}-address{suffix}", "").strip() or f"{url.hostname}:{port}"
        addresses.append(f"{scheme}://{place.replace('0.0.0.0:', f'{url.hostname}:')}")
    return Hdfs(f"hdfs://{url.netloc}", tuple(addresses), user), ""


def _parse_response(answer: requests.Response, url: str) -> Mapping[str, Any]:
    """Return the document of an answer."""
    # A standby NameNode answers with an error, too, and the next address is tried.
    if answer.status_code == _MISSING and "FileNotFoundException" in answer.text:
        raise FileNotFoundError(url)
    if answer.status_code >= _FIRST_ERROR:
        text = " ".join(answer.text.split())[:300]
        message = f"status {answer.status_code}, {text}"
        raise RequestError(message)
    document: Mapping[str, Any] = answer.json() if answer.content else {}
    return document
