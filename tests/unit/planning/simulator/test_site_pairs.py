"""Pairs that a site measured are what happens beside partners; what it did not measure is predicted by them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpusage.cli.cluster_file import example_cluster
from gpusage.cli.pairs import read_pairs
from gpusage.decisions.advisor import make_advisor
from gpusage.experience.profile_rows import COLUMNS
from gpusage_hooks.errors import RequestError
from gpusage_planning import commands
from gpusage_planning.simulator.contract import Kind, Tenant
from gpusage_planning.simulator.fleet import fleet_of
from gpusage_planning.simulator.predictions import read_models
from gpusage_planning.simulator.scenario import scenario_of
from gpusage_planning.simulator.truth import measured_of
from simulated import read_trace

ADVISOR = make_advisor()
FLEET = fleet_of(example_cluster("none", ADVISOR.catalogue), ADVISOR.catalogue)
TYPES = [one.name for one in FLEET.types]
MODELS = Path(__file__).parents[4] / "examples" / "models"
SMALL, LARGE = (f"{MODELS}/{name}.onnx,batch=8" for name in ("resnet18", "dlrm"))
JOBS = f"""job_id,submit_time,duration,gpu_num,model
1,0,600,1,"{SMALL}"
2,0,600,1,"{LARGE}"
"""
PAIRS = f"""model,beside,slowdown,gpu_type
"{SMALL}","{LARGE}",2.5,V100
"{LARGE}","{SMALL}",1.25,
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_measured_pairs_are_what_happens_and_all_else_is_predicted(tmp_path: Path) -> None:
    """A row without a GPU type holds on every one; throughputs are one over the slowdowns."""
    jobs = read_trace(write(tmp_path / "jobs.csv", JOBS), FLEET).jobs
    pairs = read_pairs(write(tmp_path / "pairs.csv", PAIRS))
    plain = scenario_of(jobs, FLEET, ADVISOR, tmp_path, 0)
    known = scenario_of(jobs, FLEET, ADVISOR, tmp_path, 0, pairs)
    for place, name in enumerate(TYPES):
        predicted = plain.truth.colocation_of([Tenant(0), Tenant(1)], place).speeds
        speeds = known.truth.colocation_of([Tenant(0), Tenant(1)], place).speeds
        assert speeds[1] == pytest.approx(0.8)
        # Elsewhere the reverse alone was measured, near to what was predicted.
        assert speeds[0] == pytest.approx(0.4 if name == "v100" else predicted[0], rel=0.05)


def test_policies_predict_partners_by_the_measured_pairs_of_their_gpu_type(tmp_path: Path) -> None:
    """What the large job does to the small one was measured on V100s alone, the reverse everywhere."""
    jobs = read_trace(write(tmp_path / "jobs.csv", JOBS), FLEET).jobs
    pairs = read_pairs(
        write(tmp_path / "pairs.csv", PAIRS.rpartition("\n")[0].replace(f'"{LARGE}","{SMALL}"', '"x","y"'))
    )
    plain, known = (scenario_of(jobs, FLEET, ADVISOR, tmp_path, 0, some).foresight for some in ((), pairs))
    for name, rule, learned in zip(TYPES, plain.pair_throughputs, known.pair_throughputs, strict=True):
        if name == "v100":
            assert learned[0, 1] == pytest.approx(0.4, abs=0.05)
        else:
            assert np.array_equal(learned, rule)


def test_a_job_on_a_share_is_as_slow_as_its_share_or_its_measured_partners_make_it(tmp_path: Path) -> None:
    jobs = read_trace(write(tmp_path / "jobs.csv", JOBS), FLEET).jobs
    known = scenario_of(jobs, FLEET, ADVISOR, tmp_path, 0, read_pairs(write(tmp_path / "pairs.csv", PAIRS)))
    place = TYPES.index("v100")
    alone = known.truth.colocation_of([Tenant(0, 50)], place).speeds[0]
    assert known.truth.colocation_of([Tenant(0, 50), Tenant(1, 50)], place).speeds[0] == pytest.approx(min(alone, 0.4))
    slow = known.truth.colocation_of([Tenant(0, 5)], place).speeds[0]
    assert known.truth.colocation_of([Tenant(0, 5), Tenant(1, 50)], place).speeds[0] == pytest.approx(min(slow, 0.4))


def row(kind: str, model: str, rate: float, **cells: object) -> dict[str, object]:
    return {
        "item": f"{kind}:x",
        "kind": kind,
        "status": "ok",
        "sharing": "mps",
        "model": model,
        "batch_size": 8,
        "mode": "train",
        "precision": "fp32",
        "steps_per_s": rate,
        "gpu": "V100-SXM2-16GB",
        **cells,
    }


def test_pairs_of_a_table_of_profile_are_read_against_the_rates_alone_under_mps(tmp_path: Path) -> None:
    """A pair with a side that failed, or that was never alone, tells nothing."""
    first, second = (f"{MODELS}/{name}.onnx" for name in ("resnet18", "dlrm"))
    rows = [
        row("share", first, 10.0, thread_percent="100"),
        row("share", second, 40.0, thread_percent="100"),
        row("share", second, 20.0, thread_percent="50"),
        row("pair", first, 5.0),
        row("pair", second, 32.0),
        row("pair", first, 5.0, item="pair:y"),
        row("pair", second, 0.0, item="pair:y", status="failed"),
        row("pair", first, 5.0, item="pair:z"),
        row("pair", "builtin:mlp", 5.0, item="pair:z"),
    ]
    with (tmp_path / "profile.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    pairs = read_pairs(tmp_path / "profile.csv")
    assert [(pair.job.model, pair.slowdown) for pair in pairs] == [(first, 2.0), (second, 1.25)]
    kinds = [Kind(name="a", model=f"{first},batch=8,mode=train"), Kind(name="b", model=f"{second},batch=8,mode=train")]
    measured = measured_of(pairs, kinds, read_models(kinds, FLEET, ADVISOR, tmp_path), FLEET)
    assert (measured.pair_count, measured.used_count) == (2, 2)
    assert measured.pair_throughputs[TYPES.index("v100")] == pytest.approx(
        np.array([[np.nan, 0.5], [0.8, np.nan]]), nan_ok=True
    )
    assert np.isnan(measured.pair_throughputs[TYPES.index("t4")]).all()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Pairs file 'PATH' must have a column 'model'; got an empty file."),
        ("model,beside\n", "Pairs file 'PATH' must have a column 'slowdown'; got model, beside."),
        ("item,kind\n", "Pairs file 'PATH' must have a column 'status'; got item, kind."),
        ("model,beside,slowdown\n", "Pairs file 'PATH' must have at least one pair; got none."),
        ("model,beside,slowdown\na,b,x\n", "Column 'slowdown' of PATH, line 2 must be a number above 0; got 'x'."),
        ("model,beside,slowdown\na,b,0\n", "Column 'slowdown' of PATH, line 2 must be a number above 0; got '0'."),
        (
            "model,beside,slowdown\na,b,0.2\n",
            "Column 'slowdown' of PATH, line 2 must be from 0.5 to 10000 times as",
        ),
        ("model,beside,slowdown\na,b,1e308\n", "Column 'slowdown' of PATH, line 2 must be from 0.5 to 10000 times as"),
        ("model,beside,slowdown\na,,1\n", "Column 'beside' of PATH, line 2 must be a model with its options; got noth"),
        ('model,beside,slowdown\na,"b,batch=x",1\n', "Column 'beside' of PATH, line 2 must be a model with its opt"),
        ("model,beside,slowdown\na,b\n", "Pairs file 'PATH' must have as many cells on each line as names, 3; got 2"),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", text)
    with pytest.raises(RequestError) as caught:
        read_pairs(path)
    assert str(caught.value).startswith(sentence.replace("PATH", str(path)))


def test_the_command_says_how_many_pairs_are_of_these_jobs(tmp_path: Path) -> None:
    jobs, pairs = write(tmp_path / "jobs.csv", JOBS), write(tmp_path / "p.csv", PAIRS + f'"{SMALL}",other.onnx,2,\n')
    words = ["--jobs", str(jobs), "--pairs", str(pairs), "--policy", "packing"]
    result = CliRunner().invoke(commands.simulate, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "2 of 3 measured pairs are of these jobs" in result.stdout
    none = write(tmp_path / "none.csv", "model,beside,slowdown\na.onnx,b.onnx,2\n")
    of_others = CliRunner().invoke(commands.simulate, [*words[:2], "--pairs", str(none), "--policy", "packing"])
    assert "None of the 1 measured pairs is of these jobs" in of_others.stdout
    absent = CliRunner().invoke(commands.simulate, [*words[:2], "--pairs", str(tmp_path / "absent.csv")])
    assert "Pairs file" in str(absent.exception)
