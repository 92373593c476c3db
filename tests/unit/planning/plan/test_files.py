"""The two files of `gpusage plan`: what they say, and one sentence with line and column where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusage.cli.options import duration_s
from gpusage_hooks.errors import RequestError
from gpusage_planning.plan.files import parse_lines, parse_nodes, read_lines, read_nodes

TYPE = {"name": "NC6", "gpu": "k80", "gpus": 1, "price_per_hour": 0.56}
NODES = {"nodes": [{"name": "cloud", "count": 2, "types": [TYPE]}]}


def test_a_line_has_step_times_by_gpu_and_count_and_times_with_units() -> None:
    (line,) = parse_lines("job_id,steps,submitted,deadline,k80:1,k80:2\na,100,90s,1h,0.5,\n", "j.csv")
    assert line.step_times_s == {("k80", 1): 0.5}
    assert (line.job.submitted_s, line.job.deadline_s, line.steps) == (90.0, 3600.0, 100.0)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5h", 5400), ("25m", 1500), ("2d", 172800)])
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Jobs file 'j.csv' must have a column 'job_id'; got an empty file. Add it."),
        ("job_id,v100:1\n", "Jobs file 'j.csv' must have at least one job below its line of names; got none. Add one."),
        ("name,v100:1\na,1\n", "Column 'name' of jobs file 'j.csv' must be one that gpusage knows."),
        ("job_id,steps\na,1\n", "Jobs file 'j.csv' must have a column 'model', or one such as 'v100:1'; got neither."),
        (
            "job_id,v100:1\na,-3\n",
            "Column 'v100:1' of j.csv, line 2 must be a number above 0, and at most 1e+09; got '-3'.",
        ),
        (
            "job_id,v100:1\na,nan\n",
            "Column 'v100:1' of j.csv, line 2 must be a number above 0, and at most 1e+09; got 'nan'.",
        ),
        (
            "job_id,v100:1\na,x\n",
            "Column 'v100:1' of j.csv, line 2 must be a number above 0, and at most 1e+09; got 'x'.",
        ),
        (
            "job_id,steps,v100:1\na,1e308,1e308\n",
            "Column 'steps' of j.csv, line 2 must be a number above 0, and at most 1e+09; got '1e308'.",
        ),
        ("job_id,v100:1\na,1\na,2\n", "Column 'job_id' on j.csv, line 3 must differ from job to job; got 'a' again."),
        ("job_id,v100:1\n,2\n", "Column 'job_id' of j.csv, line 2 must be a name; got nothing."),
        ("job_id,v100:1\na,\n", "Column 'model' of j.csv, line 2 must be a model, or the line must have a step time;"),
        (
            "job_id,v100:1\na,1,2\n",
            "Jobs file 'j.csv' must have as many cells on each line as names, 2; got 3 on line 2. Fix it.",
        ),
        (
            "job_id,submitted,deadline,v100:1\na,2h,1h,1\n",
            "Column 'deadline' of j.csv, line 2 must be after the job's submission; got '1h'.",
        ),
        (
            "job_id,submitted,v100:1\na,-5,1\n",
            "Column 'submitted' of j.csv, line 2 must be a time of at least 0, in seconds or such as 8h, and at most ",
        ),
        (
            "job_id,max_gpus,v100:1\na,1.5,1\n",
            "Column 'max_gpus' of j.csv, line 2 must be a whole number from 1 to 64; got '1.5'.",
        ),
        (
            "job_id,v100:50%:2\na,1\n",
            "Column 'v100:50%:2' of jobs file 'j.csv' must be for one part of a GPU, for no job has several; got 2.",
        ),
        (
            "job_id,v100:1,v100:3\na,3,1\n",
            "Column 'v100:3' of jobs file 'j.csv' must be for 1, 2, 4 or another power of two of GPUs; got 3. ",
        ),
    ],
)
def test_wrong_jobs_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_lines(text, "j.csv")
    assert str(caught.value).startswith(sentence)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="must be a readable file"):
        read_lines(tmp_path / "absent.csv")
    with pytest.raises(RequestError, match="must be a readable file"):
        read_nodes(tmp_path / "absent.toml")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"job_id\n\xff\n")
    with pytest.raises(RequestError, match="must be UTF-8 text; got byte 7"):
        read_lines(binary)
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("nodes = [")
    with pytest.raises(RequestError, match="must be JSON, or TOML"):
        read_nodes(wrong)


def test_nodes_are_paid_by_the_hour_or_by_their_energy() -> None:
    measured = {"name": "house", "gpu": "v100", "gpus": 8, "power_w": 2500}
    document = {"nodes": [{"name": "n", "count": 1, "types": [TYPE, measured]}], "energy_price_per_kwh": 0.3}
    (group,) = parse_nodes(document, "c.json")
    assert [kind.price_per_hour for kind in group.types] == [0.56, pytest.approx(0.75)]  # 2.5 kW * 0.3


def test_nodes_have_names_of_their_own_or_those_of_their_kind() -> None:
    own = {"name": "n", "names": ["gpu07", "gpu09"], "types": [TYPE]}
    (named, counted) = parse_nodes({"nodes": [own, {"name": "m", "count": 2, "types": [TYPE]}]}, "c.json")
    assert (named.node_count, named.node_names, counted.node_names) == (2, ("gpu07", "gpu09"), ("m-1", "m-2"))


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "Key 'nodes' of cluster 'c.json' must be a list of at least one kind, as tables; got nothing."),
        ({"nodes": []}, "Key 'nodes' of cluster 'c.json' must be a list of at least one kind, as tables; got []."),
        (
            {"nodes": [{"name": "n", "count": 0, "types": [TYPE]}]},
            "Key 'count' of cluster 'c.json', nodes 1 must be a whole number from 1 to 100000; got 0.",
        ),
        (
            {"nodes": [{"name": "n", "count": 1, "types": [TYPE, {**TYPE, "price_per_hour": -1}]}]},
            "Key 'price_per_hour' of cluster 'c.json', nodes 1, types 2 must be a number of at least 0; got -1.",
        ),
        (
            {"nodes": [{"name": "n", "count": 1, "types": [{"name": "t", "gpu": "v100", "gpus": 1}]}]},
            "Type 't' of cluster 'c.json' must have 'price_per_hour', or 'power_w'",
        ),
        (
            {"nodes": [{"name": "n", "types": [TYPE]}]},
            "Kind 'n' of cluster 'c.json' must have 'count' or 'names'; got neit",
        ),
        (
            {"nodes": [{"name": "n", "names": ["m-1"], "types": [TYPE]}, {"name": "m", "count": 1, "types": [TYPE]}]},
            "Key 'names' of cluster 'c.json' must differ from node to node; got 'm-1' twice.",
        ),
        ({"nodes": NODES["nodes"] * 2}, "Key 'name' of cluster 'c.json' must differ from kind to kind; got 'cloud'"),
    ],
)
def test_wrong_nodes_are_one_sentence(document: object, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_nodes(document, "c.json")
    assert str(caught.value).startswith(sentence)
