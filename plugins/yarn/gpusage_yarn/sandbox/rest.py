"""What a sandbox asks its ResourceManager over HTTP."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any

from gpusage_hooks.errors import RequestError

_TIMEOUT_S = 10.0


def get(port: int, path: str) -> Any:  # noqa: ANN401 - JSON
    """Return the document at ``/ws/v1/cluster/path``, ``None`` where nobody answers with one.

    A ResourceManager that has just started answers with pages that are no documents.
    """
    try:
        status, text = _exchange(port, "GET", path, "")
        return json.loads(text) if status < _FIRST_ERROR else None
    except (OSError, HTTPException, ValueError):
        return None


def post(port: int, path: str, document: object, user: str) -> None:
    """Send *document* as *user*.

    Raises:
        RequestError: It is refused, or nobody answers.
    """
    try:
        status, text = _exchange(port, "POST", f"{path}?user.name={user}", json.dumps(document))
    except (OSError, HTTPException) as error:
        status, text = _FIRST_ERROR, str(error)
    if status >= _FIRST_ERROR:
        output = " ".join(text.split())[:300]
        message = f"ResourceManager must take {path}; got status {status}: {output}. Look into its log."
        raise RequestError(message)


_FIRST_ERROR = 300


def _exchange(port: int, method: str, path: str, body: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        connection.request(method, f"/ws/v1/cluster/{path}", body=body or None, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
