"""gpusaged, the process: it starts, listens until a signal stops it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import click
import uvloop

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.plugins.loading import managers_of
from gpusage.service.client import status_path
from gpusage.service.daily_reports import DailyReports
from gpusage.service.dispatcher import Dispatcher
from gpusage.service.job_monitor import JobMonitor
from gpusage.service.learner import Learner
from gpusage.service.metrics.opening import open_endpoint, parse_address
from gpusage.service.recorder import Recorder
from gpusage.service.request_handler import RequestHandler
from gpusage.service.servers import Server, StatusServer
from gpusage.service.snapshots import State
from gpusage.service.sockets import ServerSocket, allow_everyone, allow_only
from gpusage.service.usage_collector import RunCounters, UsageCollector
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import open_store
from gpusage_hooks.errors import GpuUsageError

SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread may keep the others of this process waiting; Python's own 5 ms is much of a job's limit."""
MAINTENANCE_INTERVAL_S = 1.0
M_ARENA_MAX = -8
"""Of glibc's mallopt(3): how many heaps its threads have. By default each has its own, and keeps there what it has
freed; with Python's lock hardly two allocate at a time."""

_log = logging.getLogger("gpusage.service")


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Default: GPUSAGE_CONFIG or /etc/gpusage/gpusage.toml.")
@click.option("--quiet", is_flag=True, help="Log warnings only, not each decision.")
@click.version_option(package_name="gpusage")
def main(config: Path | None, *, quiet: bool) -> None:
    """Answer workload managers what a job should ask for.

    Example: gpusaged --config /etc/gpusage/gpusage.toml
    """
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format="%(message)s", stream=sys.stderr)

    # The event loop waits for the interpreter while another thread computes.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    try:
        uvloop.run(serve(make_advisor(), config))
    except GpuUsageError as error:
        click.echo(f"gpusaged: error: {error}", err=True)
        sys.exit(1)


async def serve(advisor: Advisor, config: Path | None) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        GpuUsageError: The configuration, a socket, the store's URL or a plugin cannot be used.
    """
    managers = managers_of(advisor.hooks)
    configuration = load_configuration(config, managers)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # logrotate sends SIGHUP to daemons; the configuration is read again anyway. By itself it would end gpusaged.
    loop.add_signal_handler(signal.SIGHUP, lambda: None)

    opened = partial(open_store, configuration.store.url, keep_days=configuration.store.keep_days or None)
    state = State(configuration, advisor, managers, config)

    with ExitStack() as stack:
        path = Path(configuration.daemon.socket)
        request_socket = stack.enter_context(
            closing(ServerSocket(path, lambda socket_path: allow_only(socket_path, state.snapshot.trusted_uids)))
        )
        status_socket = stack.enter_context(closing(ServerSocket(status_path(path), allow_everyone)))
        await _serve_on((request_socket, status_socket), state, opened, stop)


async def _maintain_sockets(request_socket: ServerSocket, status_socket: ServerSocket, state: State) -> None:
    """Admit the users of the current configuration, and recreate deleted sockets."""
    granted = state.snapshot.trusted_uids
    while True:
        await asyncio.sleep(MAINTENANCE_INTERVAL_S)
        # Somebody may have cleaned /run up.
        for served in (request_socket, status_socket):
            await served.restore()
        if (trusted := state.snapshot.trusted_uids) != granted:
            granted = trusted
            request_socket.update_permissions()


async def _serve_on(
    sockets: tuple[ServerSocket, ServerSocket], state: State, opened: Callable[[], DecisionStore], stop: asyncio.Event
) -> None:
    """Start what answers and works in the background, each in a thread of its own, and end it after *stop*."""
    loop, (request_socket, status_socket) = asyncio.get_running_loop(), sockets
    metrics, runs = parse_address(state.snapshot.configuration.daemon.metrics), RunCounters()
    recorder = Recorder(opened(), loop, state.snapshot.advisor.hooks)
    job_monitor = JobMonitor(state, opened())
    usage_collector = UsageCollector(state, opened(), runs if metrics else None)
    request_handler = RequestHandler(recorder, job_monitor, loop)
    dispatcher = Dispatcher(state, request_handler, recorder, job_monitor, usage_collector)
    server, status_server = Server(dispatcher, loop), StatusServer(dispatcher, loop)

    learner = Learner(lambda: state.snapshot.configuration, opened, state.set_learned)
    threads = (state, learner, request_handler, job_monitor, usage_collector, DailyReports(state, opened))

    recorder.start()
    for thread in threads:
        thread.start()
    endpoint = open_endpoint(metrics, request_handler, recorder, job_monitor, runs)

    # The objects of today stay: the collector need not visit them while somebody waits.
    gc.collect()
    gc.freeze()
    # From here on clients are answered: everything that answers them has started.
    await request_socket.serve(server.start)
    await status_socket.serve(status_server.start)
    maintenance = loop.create_task(_maintain_sockets(request_socket, status_socket, state))
    _log.info("gpusaged listens at %s, mode %s", request_socket.path, state.snapshot.configuration.mode)

    await stop.wait()
    _log.info("gpusaged stops")
    maintenance.cancel()
    if endpoint is not None:
        endpoint.close()
    await status_server.close()
    await server.close()

    # Nobody asks any more; the recorder is last, because it has what the others decided.
    for thread in reversed(threads):
        thread.stop()
    await recorder.close()


if __name__ == "__main__":
    main()
