"""A cluster with gpusage in whatever mode, beside one without gpusage, and what each client does on both."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from gpusage_sandboxes.gpusaged import start_gpusaged, stop_gpusaged, write_gpusage_toml
from gpusage_sandboxes.yarn import Sandbox
from yarn_clients import Client, Ending, run_client
from yarn_nodes import relabel

GPU_NODE, LABEL = "v100-1", "v100"
Mode = Literal["enforce", "observe", "dead"]
"""What gpusaged does: it gives shares, only says which, or does not run."""


@dataclass(slots=True)
class YarnPair:
    """The same cluster twice; what ended well without gpusage is run once."""

    without: Sandbox
    with_gpusage: Sandbox
    mode: Mode | None = None
    endings: dict[Client, Ending] = field(default_factory=dict)

    def set_mode(self, mode: Mode) -> None:
        """Let gpusaged run in *mode*."""
        if mode != self.mode:
            self.mode = None
            stop_gpusaged(self.with_gpusage)
            write_gpusage_toml(self.with_gpusage.layout, "observe" if mode == "observe" else "enforce")
            if mode != "dead":
                start_gpusaged(self.with_gpusage)
            self.mode = mode

    def run(self, client: Client, mode: Mode) -> tuple[Ending, Ending]:
        """Return how *client* ended without gpusage, and with gpusage in *mode*."""
        self.set_mode(mode)
        with ThreadPoolExecutor() as threads:
            ours = threads.submit(self._run_ours, client)
            without = self.endings.get(client) or run_client(self.without, client)
            if without.exit_status == 0:  # a failure is of its moment: a second try of the test runs it again
                self.endings[client] = without
            return without, ours.result()

    def _run_ours(self, client: Client) -> Ending:
        with unlabelled(self.with_gpusage) if client.unlabelled else nullcontext():
            return run_client(self.with_gpusage, client)


@contextmanager
def unlabelled(sandbox: Sandbox) -> Iterator[None]:
    """Take the label off the node with GPUs until the end of the block."""
    relabel(sandbox, GPU_NODE, "")
    try:
        yield
    finally:
        relabel(sandbox, GPU_NODE, LABEL)
