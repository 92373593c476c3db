"""The store of decisions in a real PostgreSQL."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from gpusage.store.decisions import RETRY_S, DecisionStore, StoreError
from gpusage.store.opening import open_store
from gpusage.store.postgresql import parse_address, ssl_context
from gpusage.store.rows import Observation, UsageQuery, schema_version
from gpusage_hooks.errors import RequestError
from postgresql import Server
from records import RECORD, USAGE


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
    stored = replace(died, job_name="a\x00?")
    assert opened().usage() == (
        Observation(usage=later, decision=None),
        Observation(usage=stored, decision=decided),
    )
    only = (Observation(usage=stored, decision=decided),)
    assert (
        store.usage(UsageQuery(user="ada")) == store.usage(UsageQuery(number=USAGE.number, job_id=USAGE.job_id)) == only
    )
    assert store.usage(UsageQuery(since_s=USAGE.ended_at_s + 5, count=3))[0].usage == later


def test_one_user_s_flood_leaves_room_for_the_others(opened: Callable[[], DecisionStore]) -> None:
    """As in SQLite."""
    store = opened()
    ended = [("ada", 1), ("ada", 2), ("bob", 1), ("bob", 2)]
    runs = [replace(USAGE, job_id=f"{user}{i}", user=user, ended_at_s=9e9 + i) for user, i in ended]
    store.record_usage([*runs, replace(USAGE, job_id="short", user="eve", ended_at_s=USAGE.started_at_s + 1)])
    question = UsageQuery(since_s=8e9, least_run_s=60.0, count_per_user=1)
    assert {each.usage.job_id for each in store.usage(question)} == {"ada2", "bob2"}


def test_usage_that_is_too_old_goes_little_by_little(server: Server) -> None:
    with closing(open_store(server.url)) as store:
        store.record_usage([replace(USAGE, job_id=str(job), ended_at_s=1.0) for job in range(4)])
    with closing(open_store(server.url, keep_days=1)) as store:
        store.record_usage([replace(USAGE, ended_at_s=time.time())])
        assert len(store.usage()) == 2  # of four old ones three went


def test_texts_that_postgresql_cannot_hold_are_kept_as_far_as_it_can(opened: Callable[[], DecisionStore]) -> None:
    store = opened()
    store.record(replace(RECORD, model="a\x00\udc80'; DROP TABLE gpusage.decisions; --%s:x", origin="ü"))
    (decision,) = store.latest(1)
    assert decision.model is not None
    assert decision.model.endswith("'; DROP TABLE gpusage.decisions; --%s:x")


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


def test_a_newer_gpusages_store_is_left_alone(server: Server, opened: Callable[[], DecisionStore]) -> None:
    opened().record(RECORD)
    server.ask("UPDATE gpusage.version SET version = 99")
    with pytest.raises(StoreError, match=f"at most version {schema_version()}; got 99"):
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
    ("url", "expected"),
    [
        ("postgresql://u:secret@host/db", "a password, in a file that everyone may read"),
        ("postgresql://host/db?sslmode=require", "sslmode=require"),
        ("postgresql://host/db?color=red", "color"),
        ("postgresql://host:port/db", "'port'"),
    ],
)
def test_a_url_that_we_cannot_keep_to_is_one_sentence(url: str, expected: str) -> None:
    with pytest.raises(RequestError, match=expected) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_a_url_says_where_as_libpq_reads_it() -> None:
    assert str(parse_address("postgresql://me@db.site:6000/usage")) == "postgresql://me@db.site:6000/usage"
    assert parse_address("postgresql://me@db.site/usage?sslmode=verify-full").sslmode == "verify-full"
    assert parse_address("postgresql:///usage").host == "/var/run/postgresql"


def test_verify_full_takes_no_certificate_but_a_trusted_one_for_the_servers_name() -> None:
    """What pg8000 makes of a mere True would take any."""
    context = ssl_context(parse_address("postgresql://db.site/usage?sslmode=verify-full").sslmode)
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert ssl_context(parse_address("postgresql://db.site/usage?sslmode=disable").sslmode) is False
    assert ssl_context(parse_address("postgresql://db.site/usage").sslmode) is None


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
