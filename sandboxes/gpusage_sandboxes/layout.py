"""Where everything of a sandbox lies, whatever workload manager runs in it; all below one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The folders that every sandbox has."""

    folder: Path

    @property
    def etc(self) -> Path:
        """The configuration of the daemons and of gpusage: plain files, to be edited."""
        return self.folder / "etc"

    @property
    def gpusage_toml(self) -> Path:
        """The configuration of gpusage."""
        return self.etc / "gpusage.toml"

    @property
    def record(self) -> Path:
        """What makes a folder a sandbox; written first, removed last."""
        return self.folder / "sandbox.json"

    @property
    def logs(self) -> Path:
        """One log per daemon, named after it."""
        return self.folder / "log"

    @property
    def run(self) -> Path:
        """Process ids and sockets."""
        return self.folder / "run"

    @property
    def socket(self) -> Path:
        """Where gpusaged listens."""
        return self.run / "gpusaged.sock"

    @property
    def jobs(self) -> Path:
        """Where commands and jobs start."""
        return self.folder / "jobs"

    @property
    def state(self) -> Path:
        """What the daemons keep, and the decisions of gpusage."""
        return self.folder / "state"

    def pid_file(self, daemon: str) -> Path:
        """Return where the process id of *daemon* stands."""
        return self.run / f"{daemon}.pid"

    def log_file(self, daemon: str) -> Path:
        """Return where *daemon* writes its log."""
        return self.logs / f"{daemon}.log"
