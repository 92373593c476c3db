"""A whole campaign on the CPU, with networks of a few thousand weights: what a GPU will see, without one."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpusage.cli import main
from gpusage_lab.profiling.campaign import Announcement, Order, run
from gpusage_lab.profiling.items import Item, Side
from gpusage_lab.profiling.suites import job

TINY = job("builtin:tiny-mlp,batch=4,precision=fp32,optimizer=none")  # an optimizer's first import takes seconds
TOO_LARGE = job("builtin:tiny-mlp,batch=1000000000,precision=fp32")
UNKNOWN = job("builtin:no-such-network")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.torch
def test_a_campaign_measures_each_kind_records_failures_and_goes_on(tmp_path: Path) -> None:
    items = [
        Item(kind="solo", sides=(Side(job=TINY),), seconds=0.1),
        Item(kind="solo", sides=(Side(job=TOO_LARGE),), seconds=0.1, tier=1),
        Item(kind="solo", sides=(Side(job=UNKNOWN),), seconds=0.1, tier=3),
        Item(kind="pair", sides=(Side(job=TINY),) * 2, seconds=0.1, tier=2),
    ]
    order = Order(items=items, output=tmp_path / "table.csv", gpu=None)
    messages: list[Announcement] = []
    assert run(order, messages.append) == 4
    actual = {(row["kind"], row["side"]): row for row in rows_of(order.output) if row["status"] == "ok"}
    solo, second = actual["solo", "0"], actual["pair", "1"]
    assert (solo["device"], solo["sharing"], solo["gpu"]) == ("cpu", "cpu", "")
    assert int(solo["parameter_count"]) == 16 * 32 + 32 + 32 * 4 + 4
    assert float(solo["steps_per_s"]) * 4 == pytest.approx(float(solo["samples_per_s"]), rel=1e-4)
    assert (second["sides"], second["partners"]) == ("2", items[3].sides[0].label)
    assert [row["status"] for row in rows_of(order.output) if row["model"] == UNKNOWN.model] == ["failed"]
    assert [row["status"] for row in rows_of(order.output) if row["batch_size"] == "1000000000"] == ["oom"]
    assert run(order, messages.append) == 0  # all of it is in the table
    assert [item.status for item in messages if item.status] == ["ok", "oom", "ok", "failed"]


@pytest.mark.torch
def test_a_stopped_campaign_keeps_what_it_has_and_leaves_no_process(tmp_path: Path) -> None:
    output = tmp_path / "table.csv"
    words = [
        "builtin:tiny-mlp,batch=1,mode=infer",
        "builtin:tiny-mlp,batch=2,mode=infer",
        "--only",
        "solo,pair",
        "-o",
        str(output),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "gpusage.cli", "profile", "--device", "cpu", *words],
        env={**os.environ, "GPUSAGE_TEST_MARK": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()  # told when the first item is in the table
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "ok" in first
    assert "Run it again to go on" in rest
    assert [row["status"] for row in rows_of(output)][:1] == ["ok"]
    assert processes_with(f"GPUSAGE_TEST_MARK={tmp_path}") == []


def processes_with(mark: str) -> list[str]:
    """Return the processes that carry *mark* in their environment."""
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in read(path)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # another user's, or gone
        return b""


def test_a_dry_run_tells_what_would_be_measured_and_touches_nothing(tmp_path: Path) -> None:
    output = tmp_path / "table.csv"
    result = CliRunner().invoke(main, ["profile", "--dry-run", "--budget", "10m", "--only", "solo", "-o", str(output)])
    assert result.exit_code == 0
    assert "solo:builtin:autoencoder" in result.stdout
    assert "pair" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_cpu_is_tried_with_the_tiny_suite_unless_another_is_named() -> None:
    output = [
        CliRunner().invoke(main, ["profile", "--dry-run", "--device", "cpu", *more]).stdout
        for more in ((), ("--suite", "tiny"), ("--suite", "session"))
    ]
    assert output[0] == output[1]
    assert "builtin:tiny-mlp" in output[0]
    assert "builtin:tiny-mlp" not in output[2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--budget", "soon"), "must be a time such as 90s, 25m, 8h or 2d"),
        (("--only", "pears"), "must be of solo, share, pair"),
    ],
)
def test_a_wrong_option_is_explained(words: tuple[str, ...], expected: str) -> None:
    result = CliRunner().invoke(main, ["profile", *words])
    assert result.exit_code == 2
    assert expected in result.stderr


def test_without_torch_a_campaign_ends_before_it_writes_down_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    table = tmp_path / "table.csv"
    result = CliRunner().invoke(main, ["profile", "--device", "cpu", "--suite", "tiny", "--output", str(table)])
    assert result.exit_code == 1
    rule = "Library torch must be there to measure; got: not installed."
    assert result.stderr == f"gpusage: error: {rule} Install gpusage with its extra [profile].\n"
    assert not table.exists()
