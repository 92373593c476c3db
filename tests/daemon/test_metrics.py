"""What gpusaged tells Prometheus: its own counts, at its own endpoint, to a real Prometheus as well."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import reduce
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpusage_sandboxes.host import free_ports
from gpusage_sandboxes.packages import unpack
from waiting import LIMIT_S, wait_until

Counts = Mapping[str, float]


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
        content: bytes = answer.read()
        return content


def counts(port: int) -> Counts:
    """Return each sample by its name and labels."""
    text = get(port, "/metrics").decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {f"{one.name}{','.join(f'{k}={v}' for k, v in sorted(one.labels.items()))}": one.value for one in samples}


@pytest.fixture
def measured(idle: Any) -> tuple[Any, int]:  # conftest's Daemon
    """Return a daemon that tells its metrics, and the port."""
    port = free_ports(1)[0]
    text = (idle.folder / "c.toml").read_text()
    (idle.folder / "c.toml").write_text(text.replace("[daemon]\n", f'[daemon]\nmetrics = "127.0.0.1:{port}"\n'))
    idle.start()
    return idle, port


def test_decisions_and_durations_are_counted(measured: tuple[Any, int]) -> None:
    daemon, port = measured
    for _ in range(3):
        daemon.ask()
    daemon.ask(daemon.question(comment="gpusage=off"))
    daemon.wait(lambda: daemon.status()["records"]["written"] == 4)
    daemon.wait(lambda: counts(port).get("gpusage_records_written_total") == 4)
    actual = counts(port)
    decided = {name: value for name, value in actual.items() if name.startswith("gpusage_decisions_total")}
    assert sum(decided.values()) == actual["gpusage_answer_duration_seconds_count"] == 4
    assert decided["gpusage_decisions_totalcode=DECLINE,manager=slurm,mode=enforce"] == 1
    assert actual["gpusage_answer_duration_seconds_bucketle=+Inf"] == 4
    assert 0 < actual["gpusage_answer_duration_seconds_sum"] < 40
    assert actual["gpusage_records_lost_total"] == actual["gpusage_answers_overdue_total"] == 0


def test_there_is_one_page_and_no_user_on_it(measured: tuple[Any, int]) -> None:
    daemon, port = measured
    daemon.ask()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(port, "/")
    assert not re.search(rb"\b1000\b", get(port, "/metrics"))  # a byte count may have these digits within


def test_a_slow_visitor_is_sent_away_and_answers_go_on(measured: tuple[Any, int]) -> None:
    daemon, port = measured
    with closing(socket.create_connection(("127.0.0.1", port))) as silent:
        silent.settimeout(LIMIT_S)
        assert daemon.ask()["code"] == "REWRITE"
        assert silent.recv(10) == b""  # it was sent away
    assert counts(port)["gpusage_answer_duration_seconds_count"] == 1


def test_a_port_that_is_taken_costs_the_metrics_alone(idle: Any) -> None:  # conftest's Daemon
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        text = (idle.folder / "c.toml").read_text()
        (idle.folder / "c.toml").write_text(text.replace("[daemon]\n", f'[daemon]\nmetrics = "127.0.0.1:{port}"\n'))
        idle.start()
        assert idle.ask()["code"] == "REWRITE"
        assert "no metrics: nobody can listen" in idle.log()
        assert idle.stop() == 0


def test_without_the_key_nobody_listens(daemon: Any) -> None:  # conftest's Daemon
    assert "metrics" not in daemon.log()


@pytest.fixture(scope="session")
def prometheus_command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Debian's Prometheus, unpacked; nothing is installed."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("a real Prometheus takes apt-get and dpkg")
    folder = tmp_path_factory.mktemp("prometheus")
    folder.chmod(0o755)
    done = subprocess.run(
        ["apt-get", "download", "--option=APT::Sandbox::User=", "prometheus"],
        cwd=folder, check=False, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    archives = [*folder.glob("*.deb")]
    if not archives:
        pytest.skip(f"apt-get has no prometheus here: {done.stderr.strip()[-200:]}")
    unpack(archives, folder / "root")
    return folder / "root" / "usr" / "bin" / "prometheus"


@pytest.fixture
def prometheus(prometheus_command: Path, measured: tuple[Any, int], tmp_path: Path) -> Iterator[int]:
    """Yield the port of a Prometheus that scrapes the daemon five times a second."""
    port = free_ports(1)[0]
    (tmp_path / "p.yml").write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        "scrape_configs:\n"
        f"- {{job_name: gpusage, static_configs: [{{targets: ['127.0.0.1:{measured[1]}']}}]}}\n"
    )
    command = [
        str(prometheus_command), f"--config.file={tmp_path}/p.yml", f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        yield port
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def query_prometheus(port: int, query: str) -> list[dict[str, Any]]:
    """Return the series that answer *query* now; PromQL that Prometheus does not understand is an error."""
    answer = json.loads(get(port, f"/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
    assert answer["status"] == "success", answer
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("gpusage.service.metrics").joinpath("grafana.json").read_text())
    return content


def queries() -> list[str]:
    """Return each query of the dashboard, with Grafana's variables as a site has them."""
    texts = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    variables = {"$__rate_interval": "10s", "$__range": "20s", "$job": "gpusage"}
    return [reduce(lambda text, item: text.replace(*item), variables.items(), text) for text in texts]


def eventually(condition: Callable[[], bool]) -> None:
    def is_met() -> bool:
        with suppress(OSError):  # it has not started yet
            return condition()
        return False

    wait_until(is_met)


def test_each_query_of_the_dashboard_has_an_answer_of_a_real_prometheus(
    measured: tuple[Any, int], prometheus: int
) -> None:
    """The stand-in cluster tells of one run, on a share."""
    daemon, _ = measured
    eventually(lambda: bool(query_prometheus(prometheus, "gpusage_build_info")))
    number = re.search(r"gpusage (\w{12}) ", daemon.ask()["mark"])
    assert number is not None
    daemon.behave(usage=[number[1]])
    eventually(lambda: bool(query_prometheus(prometheus, "gpusage_runs_observed_total")))
    for _ in range(5):
        daemon.ask()
    eventually(lambda: all(query_prometheus(prometheus, query) for query in queries()))
    (freed,) = (query for query in queries() if "requested" in query)
    # An hour on a share with nobody beside it, which would have been an hour on the whole GPU, by a price of nothing.
    held = "sum(gpusage_gpu_held_seconds_total)"
    eventually(lambda: query_prometheus(prometheus, held)[0]["value"][1] == "3600")
    eventually(lambda: float(query_prometheus(prometheus, freed)[0]["value"][1]) == pytest.approx(0.0, abs=0.2))


def test_the_dashboard_asks_for_metrics_that_there_are(measured: tuple[Any, int]) -> None:
    text = get(measured[1], "/metrics").decode()
    known = {family.name for family in text_string_to_metric_families(text)}
    for name in {name for query in queries() for name in re.findall(r"gpusage_\w+", query)}:
        assert re.sub(r"_(total|bucket|sum|count|info)$", "", name) in known, name


def test_slow_visitors_block_no_scrape_and_are_sent_away(measured: tuple[Any, int]) -> None:
    """One connection that sent a byte every 1.5 s failed 3 of 3 scrapes: the limit was for each read."""
    daemon, port = measured
    daemon.ask()
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(socket.create_connection(("127.0.0.1", port)))) for _ in range(40)]
        begun_s = time.monotonic()
        for _ in range(3):
            for each in slow:
                with suppress(OSError):
                    each.sendall(b"G")
            assert get(port, "/metrics")
        assert time.monotonic() - begun_s < 3 * LIMIT_S
        last = slow[-1]
        last.settimeout(0.3)
        with suppress(ConnectionError):
            while True:  # it goes on sending, and is sent away all the same
                try:
                    if not last.recv(1000):
                        break
                except TimeoutError:
                    last.sendall(b"G")
