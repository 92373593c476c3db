"""How Hadoop's daemons are asked over HTTP: by no proxy, with certificates that are trusted here, and with Kerberos."""

from __future__ import annotations

import importlib.util
import os
from typing import Any, TypeVar

import requests

S = TypeVar("S", bound=requests.Session)


def prepared(session: S) -> S:
    """Return *session* ready to ask Hadoop's daemons."""
    session.trust_env = False  # a proxy is for the world outside
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
    session.auth = kerberos()
    return session


def kerberos() -> Any:  # noqa: ANN401 - an optional package's
    """Return what answers a Negotiate challenge, ``None`` where requests-kerberos is not installed."""
    if importlib.util.find_spec("requests_kerberos") is None:
        return None
    kerberos = importlib.import_module("requests_kerberos")
    return kerberos.HTTPKerberosAuth(mutual_authentication=kerberos.OPTIONAL)


def how_to_get_in() -> str:
    """Return what to do where a daemon does not know who asks."""
    if importlib.util.find_spec("requests_kerberos") is None:
        return "Install requests-kerberos into gpusage's own Python, then run kinit"
    return "Run kinit: there is no valid ticket, or it is of a user who is not known there"


def reason(error: Exception) -> str:
    """Return in a few words why nobody answers."""
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
