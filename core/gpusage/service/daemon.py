"""gpusaged, the process: it starts, listens until it is told to stop, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import uvloop

from gpusage.advisor import Advisor, make_advisor
from gpusage.configuration_file import load_configuration
from gpusage.managers import managers_of
from gpusage.service.access import keep_to, open_to_everyone
from gpusage.service.aftercare import Aftercare
from gpusage.service.asks import Asks
from gpusage.service.client import status_path
from gpusage.service.dispatcher import Dispatcher
from gpusage.service.learner import Learner
from gpusage.service.metrics.opening import address_of, open_endpoint
from gpusage.service.metrics.sources import Sources
from gpusage.service.recorder import Recorder
from gpusage.service.served_socket import ServedSocket
from gpusage.service.server import Server
from gpusage.service.state import State
from gpusage.service.status_server import StatusServer
from gpusage.service.tallies import RunTally
from gpusage.service.usage_watch import UsageWatch
from gpusage.store.opening import open_store
from gpusage_hooks.errors import GpuUsageError

SWITCH_INTERVAL_S = 0.0005
"""How long a busy thread may keep the others of this process waiting; Python's own 5 ms is much of a job's limit."""
TEND_S = 1.0

_log = logging.getLogger("gpusage.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Helpers:
    """What works beside the answers, each in a thread of its own.

    Attributes:
        runs: Counts what *usage_watch* collects.
        metrics: Where to tell Prometheus; ``None`` where a site does not want that.
    """

    recorder: Recorder
    aftercare: Aftercare
    usage_watch: UsageWatch
    runs: RunTally
    metrics: tuple[str, int] | None


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Default: GPUSAGE_CONFIG or /etc/gpusage/gpusage.toml.")
@click.option("--quiet", is_flag=True, help="Log warnings only, not each decision.")
@click.version_option(package_name="gpusage")
def main(config: Path | None, *, quiet: bool) -> None:
    """Answer workload managers what a job should ask for.

    Example: gpusaged --config /etc/gpusage/gpusage.toml
    """
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format="%(message)s", stream=sys.stderr)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
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
    opened = partial(open_store, configuration.store.url, keep_days=configuration.store.keep_days or None)
    state = State(configuration, advisor, managers, config)
    metrics, runs = address_of(configuration.daemon.metrics), RunTally()
    helpers = Helpers(
        recorder=Recorder(opened(), loop, advisor.hooks),
        aftercare=Aftercare(state, opened),
        usage_watch=UsageWatch(state, opened, runs if metrics else None),
        runs=runs,
        metrics=metrics,
    )
    with ExitStack() as stack:
        path = Path(configuration.daemon.socket)
        asking = stack.enter_context(
            closing(ServedSocket(path, lambda socket_path: keep_to(socket_path, state.snapshot.trusted_uids)))
        )
        looking = stack.enter_context(closing(ServedSocket(status_path(path), open_to_everyone)))
        await _serve_on(asking, looking, state, helpers, stop)


async def _tend(asking: ServedSocket, looking: ServedSocket, state: State) -> None:
    """Give the right to ask to those whom a newer configuration names, and make deleted sockets again."""
    granted = state.snapshot.trusted_uids
    while True:
        await asyncio.sleep(TEND_S)
        for served in (asking, looking):
            await served.mend()
        if (trusted := state.snapshot.trusted_uids) != granted:
            granted = trusted
            asking.grant()


async def _serve_on(
    asking: ServedSocket, looking: ServedSocket, state: State, helpers: Helpers, stop: asyncio.Event
) -> None:
    loop = asyncio.get_running_loop()
    recorder, aftercare, usage_watch = helpers.recorder, helpers.aftercare, helpers.usage_watch
    asks = Asks(recorder, aftercare, loop)
    dispatcher = Dispatcher(state, asks, recorder, aftercare, usage_watch)
    server, status_server = Server(dispatcher, loop), StatusServer(dispatcher, loop)
    state.start()
    recorder.start()
    learner = Learner(lambda: state.snapshot.configuration, state.take_learned)
    learner.start()
    asks.start()
    aftercare.start()
    usage_watch.start()
    sources = Sources(asks=asks, recorder=recorder, aftercare=aftercare, runs=helpers.runs)
    endpoint = open_endpoint(helpers.metrics, sources)
    gc.collect()
    gc.freeze()  # what is here now stays: the collector need not look at it while somebody waits
    await asking.open(server.start)
    await looking.open(status_server.start)
    tending = loop.create_task(_tend(asking, looking, state))
    _log.info("gpusaged listens at %s, mode %s", asking.path, state.snapshot.configuration.mode)
    await stop.wait()
    _log.info("gpusaged stops")
    tending.cancel()
    if endpoint is not None:
        endpoint.close()
    await status_server.close()
    await server.close()
    asks.stop()
    aftercare.stop()
    usage_watch.stop()
    learner.stop()
    state.stop()
    await recorder.close()


if __name__ == "__main__":
    main()
