"""From the key ``daemon.metrics`` to the endpoint; prometheus-client is only loaded where a site wants metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpusage.service.job_monitor import JobMonitor
from gpusage.service.recorder import Recorder
from gpusage.service.request_handler import RequestHandler
from gpusage.service.usage_collector import RunCounters
from gpusage_hooks.errors import RequestError

if TYPE_CHECKING:
    from gpusage.service.metrics.endpoint import Endpoint

_log = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, int] | None:
    """Return host and port of *text*; ``None`` where it is empty.

    Raises:
        RequestError: It is no ``HOST:PORT``.
    """
    if not text:
        return None

    # urlsplit knows IPv6 in brackets.
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.netloc != text:
        message = f"Key 'daemon.metrics' must be HOST:PORT, or empty for none; got {text!r}. Write '127.0.0.1:9723'."
        raise RequestError(message)
    return host, port


def open_endpoint(
    address: tuple[str, int] | None,
    request_handler: RequestHandler,
    recorder: Recorder,
    job_monitor: JobMonitor,
    runs: RunCounters,
) -> Endpoint | None:
    """Return the endpoint at *address*, which serves the others' counts; ``None`` where none is wanted, or possible."""
    if address is None:
        return None

    try:
        from gpusage.service.metrics.endpoint import Endpoint, MetricsCollector  # an extra

        endpoint = Endpoint(address, MetricsCollector(request_handler, recorder, job_monitor, runs))
    except ImportError:
        _log.warning("no metrics: library prometheus-client is not installed; install gpusage with its extra [metrics]")
        return None
    except OSError as error:
        _log.warning("no metrics: nobody can listen at %s, port %d: %s; change daemon.metrics", *address, error)
        return None

    endpoint.start()
    _log.info("metrics at %s, port %d", address[0], endpoint.port)
    return endpoint
