"""The ResourceManager over HTTP: several addresses, a standby's redirect, and a restart in the middle of anything.

Invariants:

1. An application is submitted under one id, however often it is sent: the ResourceManager knows it by that.
2. It is sent again only while an active ResourceManager says that it knows no such application. One that is still
   reading its store back knows nothing yet; taking an application then would keep it from starting.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_yarn.cluster.documents import Document, with_repeated_names

T = TypeVar("T")
PATIENCE_S = 90.0
"""How long one that has answered before is waited for: one that starts takes some seconds, a failover half a minute."""
FIRST_PATIENCE_S = 2.0
"""How long one that has never answered is: it may be a wrong address."""

_TIMEOUT_S = (2.0, 30.0)
_FIRST_TIMEOUT_S = (2.0, 2.0)
_PAUSE_S = 0.25
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 4
_NOT_KNOWN, _UNAUTHORISED, _FIRST_ERROR, _SERVER_ERROR = 404, 401, 300, 500
_UNSAVED = ("NEW", "NEW_SAVING")
_ROOT = "/ws/v1/cluster/"
_ONCE_MORE = Retry(total=None, connect=0, read=1, redirect=0, status=0, other=0, allowed_methods={"GET"})
"""A kept connection may be closed by the server in the moment that we ask over it; a question harms nothing twice."""

_CLASSES = re.compile(r"^(?:[\w.$]+(?:Exception|Error): )+")
_CONNECTION_ERRORS = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class UnreachableError(GpuUsageError):
    """No ResourceManager answers."""

    code = "input"


class RefusedError(RequestError):
    """The ResourceManager refuses a request.

    Args:
        message: The sentence.
        status: HTTP's.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ResourceManager:
    """A client of a cluster's ResourceManagers.

    Args:
        addresses: For example ``http://rm1:8088``; the active one is found among them.
        user: Who asks, where the cluster takes our word for it.
        patience_s: How long to wait for one that is silent and has answered before.
    """

    def __init__(self, addresses: tuple[str, ...], user: str | None = None, patience_s: float = PATIENCE_S) -> None:
        self.addresses = tuple(address.rstrip("/") for address in addresses)

        # As Hadoop's own clients: without Kerberos the cluster takes our word for the user.
        self.user = user or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        self._active = self.addresses[0]
        self._patience_s = patience_s
        self._has_responded = False

        self._session = configured_session(requests.Session())
        self._session.headers["Accept"] = "application/json"
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=_ONCE_MORE))

    @property
    def address(self) -> str:
        """The ResourceManager that answered last."""
        return self._active

    def get(self, path: str) -> Document:
        """Return the document at *path* below ``/ws/v1/cluster``, waiting for a ResourceManager that is silent.

        Raises:
            UnreachableError: None has answered for too long.
            RefusedError: It answers with an error.
        """
        return self._retry_while_unreachable(lambda: self.request_once("GET", path))

    def request_once(self, method: str, path: str, document: object = None) -> Document:
        """Send a request to each address in turn, and return the answer of the first active ResourceManager.

        Raises:
            UnreachableError: None does.
            RefusedError: It answers with an error.
        """
        if not self._has_responded and len(self.addresses) > 1:
            # Begin with one that answers at once: one that hangs takes the question, and would be waited for each time.
            for address in self.addresses:
                with suppress(UnreachableError, RefusedError, *_CONNECTION_ERRORS):
                    if _is_active(self._exchange(address, "GET", "info", None, _FIRST_TIMEOUT_S)):
                        break

        troubles = []

        # A standby points to the active one by a name of its own, which need not be among ours; and it answers itself
        # when it is asked about itself, so the active one comes first by whatever name it answered.
        for address in dict.fromkeys([self._active, *self.addresses]):
            answer, trouble = self._request(address, method, path, document)
            if not trouble:
                return answer
            troubles.append(f"{address}: {trouble}")

        joined = "; ".join(troubles)
        message = f"ResourceManager must answer; got: {joined}. Check that it runs, or name another with --rm."
        raise UnreachableError(message)

    def submit(self, make: Callable[[str], Document]) -> str:
        """Submit an application, once, and return its id as soon as the ResourceManager has stored it.

        Args:
            make: From the application's new id to what is to be sent.

        Raises:
            UnreachableError: No ResourceManager has answered for too long; the id is in the message.
            RefusedError: It does not take the application.
        """
        identity = str(
            self._retry_while_unreachable(lambda: self.request_once("POST", "apps/new-application"))["application-id"]
        )

        document = make(identity)
        try:
            with suppress(UnreachableError):  # whether it was taken is seen below
                self._send(document)
            self._retry_while_unreachable(lambda: self._ensure_accepted(identity, document))
        except UnreachableError as error:
            message = f"{error} The application may have been taken as {identity}: look for it before submitting again."
            raise UnreachableError(message) from error
        return identity

    def application(self, identity: str) -> Document | None:
        """Return the active ResourceManager's report of an application, ``None`` if it does not know it.

        Raises:
            UnreachableError: None is active.
            RefusedError: It answers with an error.
        """
        try:
            return self._fetch_application(identity)
        except RefusedError as error:
            if error.status != _NOT_KNOWN:
                raise

        # One that is still reading its store back knows nothing yet, and may have become active between two questions.
        self._require_active()
        try:
            return self._fetch_application(identity)
        except RefusedError as error:
            if error.status != _NOT_KNOWN:
                raise
            return None

    def settings(self, name: str) -> str | None:
        """Return the value of a setting of the ResourceManager's, ``None`` if it does not report it.

        Raises:
            UnreachableError: None has answered for too long.
        """
        parameters = {"name": name, "format": "json", "user.name": self.user}

        def ask() -> requests.Response:
            try:
                return self._session.get(f"{self._active}/conf", params=parameters, timeout=_TIMEOUT_S)
            except _CONNECTION_ERRORS as error:
                self.request_once("GET", "info")  # another may be active by now
                raise UnreachableError(describe_connection_error(error)) from error

        try:
            return str(self._retry_while_unreachable(ask).json()["property"]["value"])
        except (ValueError, KeyError, TypeError):
            return None

    def _ensure_accepted(self, identity: str, document: Document) -> bool:
        """Send *document* unless it has arrived already; make the loop go on until it is stored."""
        report = self.application(identity)
        if report is None:
            self._send(document)
            report = self.application(identity)

        # An application that is not stored yet is lost if the ResourceManager ends now.
        while report is not None and report.get("state") in _UNSAVED:
            time.sleep(_PAUSE_S / 20)
            report = self.application(identity)
        if report is None:
            message = "it no longer knows the application"
            raise UnreachableError(message)
        return True

    def _send(self, document: Document) -> None:
        """Send *document* to a ResourceManager that has just reported that it is active."""
        self._require_active()
        _, trouble = self._request(self._active, "POST", "apps", document)
        if trouble:
            raise UnreachableError(trouble)

    def _require_active(self) -> None:
        if not _is_active(self.request_once("GET", "info")):
            message = "it is still reading its store back"
            raise UnreachableError(message)

    def _fetch_application(self, identity: str) -> Document:
        app: Document = self.request_once("GET", f"apps/{identity}")["app"]
        return app

    def _retry_while_unreachable(self, action: Callable[[], T]) -> T:
        began_s = time.monotonic()
        while True:
            try:
                return action()
            except UnreachableError:
                # One that has never answered may be a wrong address.
                patience_s = self._patience_s if self._has_responded else min(self._patience_s, FIRST_PATIENCE_S)
                if time.monotonic() - began_s >= patience_s:
                    raise
            time.sleep(_PAUSE_S)

    def _request(self, address: str, method: str, path: str, document: object) -> tuple[Document, str]:
        """Return the document of an address, or the reason why there is none."""
        try:
            return self._exchange(address, method, path, document), ""
        except _CONNECTION_ERRORS as error:
            return {}, describe_connection_error(error)
        except UnreachableError as error:
            return {}, str(error)

    def _exchange(
        self, address: str, method: str, path: str, document: object, timeout_s: tuple[float, float] = _TIMEOUT_S
    ) -> Document:
        url = f"{address}{_ROOT}{path}"
        parameters: dict[str, str] | None = {"user.name": self.user}
        for _ in range(_MAX_REDIRECTS):
            answer = self._session.request(
                method, url, params=parameters, json=document, timeout=timeout_s, allow_redirects=False
            )
            self._has_responded = True

            # A standby redirects to the active one, by an address that need not be among ours.
            target = answer.headers.get("Location", "")
            if answer.status_code not in _REDIRECTS or not target:
                self._active = address
                return _document(answer, method, path)
            url, parameters = requests.compat.urljoin(url, target), None
            address = url.partition("/ws/")[0]
        message = "standby, and so is the one that it redirects to"
        raise UnreachableError(message)


def _is_active(document: Document) -> bool:
    """Return whether a ResourceManager is active, by its *document* ``info``."""
    return (document.get("clusterInfo") or {}).get("haState") == "ACTIVE"


def _document(answer: requests.Response, method: str, path: str) -> Document:
    """Return the document of an answer; a ResourceManager that is starting or on standby sends none."""
    try:
        document = answer.json(object_pairs_hook=with_repeated_names) if answer.content else {}
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = None

    status = answer.status_code
    if status < _FIRST_ERROR and document is not None:
        return document
    if status == _UNAUTHORISED:
        _refuse(answer, method, path, authentication_hint())
    if status == _NOT_KNOWN and document is not None:
        _refuse(answer, method, path, "Check the name")

    # Without a document it is a page of a servlet that does not serve yet; a refusal of an application is final.
    starting = status >= _SERVER_ERROR and path != "apps"
    if document is None and (status < _FIRST_ERROR or starting or status in _REDIRECTS or status == _NOT_KNOWN):
        message = f"status {status}, no document: not active"
        raise UnreachableError(message)
    if starting:
        message = f"status {status}: {_error_text(answer)}"
        raise UnreachableError(message)
    return _refuse(answer, method, path, "Fix what it names, or ask your admin")


def _refuse(answer: requests.Response, method: str, path: str, cure: str) -> NoReturn:
    message = (
        f"ResourceManager must take {method} {path}; got status {answer.status_code}: {_error_text(answer)}. {cure}."
    )
    raise RefusedError(message, answer.status_code)


def _error_text(answer: requests.Response) -> str:
    """Return an error's own words: YARN's, or its servlet filter's."""
    try:
        document = answer.json()
        text = str((document.get("RemoteException") or document)["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        text = answer.text
    return _CLASSES.sub("", " ".join(text.split()))[:300].rstrip(".")


S = TypeVar("S", bound=requests.Session)


def configured_session(session: S) -> S:
    """Return *session* ready to ask Hadoop's daemons."""
    session.trust_env = False  # a proxy is for the world outside
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
    session.auth = kerberos_authentication()
    return session


def kerberos_authentication() -> Any:  # an optional package's
    """Return the answer to a Negotiate challenge, ``None`` where requests-kerberos is not installed."""
    if importlib.util.find_spec("requests_kerberos") is None:
        return None
    kerberos_authentication = importlib.import_module("requests_kerberos")
    return kerberos_authentication.HTTPKerberosAuth(mutual_authentication=kerberos_authentication.OPTIONAL)


def authentication_hint() -> str:
    """Return the remedy where a daemon does not know who asks."""
    if importlib.util.find_spec("requests_kerberos") is None:
        return "Install requests-kerberos into gpusage's own Python, then run kinit"
    return "Run kinit: there is no valid ticket, or it is of a user who is not known there"


def describe_connection_error(error: Exception) -> str:
    """Return in a few words why there is no answer."""
    text = str(error)
    if type(error) is requests.RequestException:  # our own words
        return text
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not trusted here: name your CA's file with REQUESTS_CA_BUNDLE"

    words = (
        "Connection refused",
        "timed out",
        "Name or service not known",
        "Temporary failure in name resolution",
        "No route to host",
        "Network is unreachable",
        "Connection reset",
        "Connection aborted",
        "WRONG_VERSION_NUMBER",
    )
    return next((word for word in words if word in text), type(error).__name__)
