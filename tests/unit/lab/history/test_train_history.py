"""`gpusage train --history`: fits a store's runs and says how true that is, or says how many are lacking."""

from __future__ import annotations

import json
import random
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpusage.cli import main
from gpusage.experience.history import read_history
from gpusage.store.opening import open_store
from gpusage_hooks.types import Allocation
from gpusage_lab.history import command
from past_runs import ADA, GIB
from records import RECORD, USAGE


def put_runs(url: str, count: int) -> None:
    """Put *count* runs of four jobs of four users into the store, an hour apart, the last one now."""
    chance, now_s = random.Random(0), time.time()  # the same each time
    records, usages = [], []
    for number in range(count):
        who = replace(ADA, user=str(1000 + number % 4), script_digest=str(number % 4) * 16)
        records.append(replace(RECORD, number=f"{number:012x}", identity=who, model=None, workload=None))
        usages.append(
            replace(
                USAGE,
                number=f"{number:012x}",
                job_id=str(number),
                user=who.user,
                granted=Allocation(),
                started_at_s=now_s - 3600 * (count - number),
                ended_at_s=now_s - 3600 * (count - number - 1),
                alone_s=3595.0,
                peak_utilization=(number % 4 + 1) / 5 * chance.uniform(0.95, 1.05),
                memory_bytes=(number % 4 + 1) * GIB,
            )
        )
    with closing(open_store(url)) as store:
        store.record_all(records)
        store.record_usage(usages)


def train(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["train", "--history", *arguments])


def test_it_fits_the_store_and_says_how_true_that_is(tmp_path: Path) -> None:
    """Users differ by more than runs: a constant is far off, the user's own last runs are not."""
    url, path = f"sqlite:///{tmp_path}/d.db", tmp_path / "h.json"
    put_runs(url, 200)
    result = train("--store", url, "-o", str(path), "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["schema"], document["runs"], document["users"]) == ("gpusage.history-training/1", 200, 4)
    accuracy = {
        row["predictor"]: row["symmetric_accuracy"]
        for row in document["trueness"]
        if (row["split"], row["quantity"]) == ("time", "utilization")
    }
    assert accuracy["history"] > 0.95
    assert accuracy["constant"] < 0.8
    history = read_history(path)
    assert history is not None
    assert history.runs == 200


def test_people_get_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no heading is broken
    url = f"sqlite:///{tmp_path}/d.db"
    put_runs(url, 120)
    result = train("--store", url, "-o", str(tmp_path / "h.json"))
    assert result.exit_code == 0, result.output
    for word in ("history", "user's median", "job name's last run", "constant", "symmetric accuracy"):
        assert word in result.stdout


def test_too_few_runs_write_nothing_and_say_how_many_are_needed(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/d.db", tmp_path / "h.json"
    put_runs(url, 99)
    result = train("--store", url, "-o", str(path))
    assert result.exit_code == 1
    assert "must have 100 runs whose utilization was seen; got 99. Nothing is written" in result.stderr
    assert not path.exists()


def test_no_user_s_many_runs_fill_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST_OF_A_USER", 40)
    url, path = f"sqlite:///{tmp_path}/d.db", tmp_path / "h.json"
    put_runs(url, 200)
    assert train("--store", url, "-o", str(path)).exit_code == 0
    history = read_history(path)
    assert history is not None
    assert (history.runs, history.users) == (160, 4)


@pytest.mark.parametrize(
    ("arguments", "trouble"),
    [
        (["--history", "--data", "."], "leave out --data and --target"),
        ([], "Missing option '--data'; or fit this site's own runs with --history"),
        (["--data", ".", "--json"], "--store and --json go with --history"),
    ],
)
def test_the_two_ways_to_train_do_not_mix(arguments: list[str], trouble: str) -> None:
    result = CliRunner().invoke(main, ["train", *arguments])
    assert result.exit_code == 2
    assert trouble in result.stderr
