"""Traces: what is read, and one sentence with line and column for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.cli.table_file import csv_rows
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.trace import trace_of, usual_names
from simulated import read_trace

FLEET = Fleet(
    types=(GpuType(name="v100", gpu_count=8), GpuType(name="A100", gpu_count=4)),
    cluster=Cluster(manager="none", version="", pools=()),
)
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u2,vcA,1,4,1,COMPLETED,2020-04-01 00:01:00,2020-04-01 00:02:00,2020-04-01 00:03:00,60,60
3,u1,vcA,8,4,1,FAILED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 01:00:00,3600,0
4,u1,vcA,0,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 01:00:00,3600,0
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "jobs.csv"
    path.write_text(text)
    return path


def test_helios_columns_are_read_in_the_order_of_submission(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HELIOS), FLEET)
    assert list(trace.jobs.ids) == ["3", "7"]
    assert trace.lines == [3, 2]
    assert trace.left_out == 1
    assert trace.jobs.work_s.tolist() == [3600, 60]
    assert trace.jobs.submit_s[1] - trace.jobs.submit_s[0] == 60
    assert [trace.jobs.users[user] for user in trace.jobs.user] == ["u1", "u2"]


def test_philly_names_types_models_and_limits_are_read(tmp_path: Path) -> None:
    text = (
        "jobid,submitted_time,num_gpus,duration,gpu_type,model,time_limit\n"
        'a,5,1,10,a100,"resnet50.onnx,batch=8",20\n'
        "b,6,2,10,,,\n"
    )
    jobs = read_trace(written(tmp_path, text), FLEET).jobs
    assert [(kind.model, kind.gpu_type) for kind in jobs.kinds] == [("resnet50.onnx,batch=8", "A100"), (None, None)]
    assert jobs.limit_s.tolist() == [20, 10]


HEAD = "job_id,submit_time,duration,gpu_num,gpu_type\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", ["column 'submit_time'", "an empty file"], id="empty"),
        pytest.param("job_id,submit_time,gpu_num\n", ["column 'duration'", "job_id, submit_time"], id="no column"),
        pytest.param(HEAD, ["at least one job", "got none"], id="no jobs"),
        pytest.param(HEAD + "a,0,60,1,\nb,0,-5,1,\n", ["'duration'", "line 3", "'-5'"], id="negative time"),
        pytest.param(HEAD + "a,never,60,1,\n", ["'submit_time'", "line 2", "'never'"], id="no time"),
        pytest.param(HEAD + "a,0,60,1.5,\n", ["'gpu_num'", "line 2", "whole number"], id="half a GPU"),
        pytest.param(HEAD + "a,0,60,1,k80\n", ["'gpu_type'", "line 2", "v100, A100"], id="unknown type"),
        pytest.param(HEAD + "a,0,60,9,\n", ["'gpu_num'", "line 2", "at most 8"], id="fits nowhere"),
        pytest.param(HEAD + "a,0,60,5,a100\n", ["'gpu_num'", "line 2", "at most 4"], id="too many of a type"),
        pytest.param(HEAD + "a,0,60,1,\na,1,60,1,\n", ["'job_id'", "line 3", "'a' as on line 2"], id="duplicate"),
        pytest.param(HEAD + ",0,60,1,\n", ["'job_id'", "line 2", "got nothing"], id="no name"),
        pytest.param(HEAD + "a,0,60\n", ["5; got 3 on line 2"], id="too few cells"),
        pytest.param(HEAD + "a,1e308,60,1,\n", ["'submit_time'", "line 2", "'1e308'"], id="no such year"),
        pytest.param(HEAD + "a,0,60000000,1,\n", ["'duration'", "at most 366 days, in seconds"], id="milliseconds"),
        pytest.param(HEAD + "a,2e12,60,1,\n", ["'submit_time'", "at most 1e+12"], id="microseconds"),
        pytest.param(
            HEAD + "a,2020-04-01,60,1,\nb,5,60,1,\n", ["line 3", "a date, as on the lines"], id="then seconds"
        ),
        pytest.param(HEAD + "a,5,60,1,\nb,2020-04-01,60,1,\n", ["line 3", "seconds, as on the lines"], id="then dates"),
        pytest.param(HEAD + "a,nan,60,1,\n", ["'submit_time'", "'nan'"], id="not a number"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_with_line_and_column(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        read_trace(written(tmp_path, text), FLEET)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"job_id": ["a", "b"], "submit_time": [5.0, 1.0], "duration": [60, 70], "gpu_num": [1, 2]}
    path = tmp_path / "jobs.parquet"
    parquet.write_table(arrow.table({**columns, "gpu_type": ["A100", None]}), path)
    jobs = read_trace(path, FLEET).jobs
    assert (list(jobs.ids), jobs.work_s.tolist()) == (["b", "a"], [70, 60])
    damaged = bytearray(path.read_bytes())
    damaged[20:60] = b"\xff" * 40
    path.write_bytes(damaged)
    with pytest.raises(RequestError, match="must be Parquet"):
        read_trace(path, FLEET)
    never = arrow.array([2**60, 0], type=arrow.timestamp("ms"))
    parquet.write_table(arrow.table({**columns, "submit_time": never}), path)
    with pytest.raises(RequestError, match="must be Parquet"):
        read_trace(path, FLEET)
    path.write_bytes(b"no Parquet")
    with pytest.raises(RequestError, match="must be Parquet"):
        read_trace(path, FLEET)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="UTF-8"):
        read_trace(path, FLEET)
    with pytest.raises(RequestError, match="readable"):
        read_trace(tmp_path / "none.csv", FLEET)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    lines = (HEAD + text).splitlines(keepends=True)
    try:
        trace = trace_of(csv_rows(lines, "Jobs file", "any", usual_names), "any", FLEET)
    except RequestError:
        return
    assert len(trace.jobs) > 0


ACME = """job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
9,u5907,1,2,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
"""


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("timestamp,num_gpus,duration\n5,1,60\n9,2,60\n", ["2", "3"]),
        ("job_id,num_gpu,submit_time,iterations,model_name,duration\n7,4,5,100,vgg16,60\n", ["7"]),
        (ACME, ["9"]),
    ],
)
def test_the_columns_of_published_traces_are_known(tmp_path: Path, text: str, ids: list[str]) -> None:
    """Of a trace that numbers no jobs, of Tiresias and ElasticFlow, and of Acme."""
    assert list(read_trace(written(tmp_path, text), FLEET).jobs.ids) == ids
