"""Traces as they are published; the excerpts have the form of the published files, and made-up jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster
from gpusage_planning import commands
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.formats import FORMATS, RATES, find_format
from gpusage_planning.simulator.predictions import with_drawn_models
from gpusage_planning.simulator.source import Source, scenario
from gpusage_planning.simulator.trace import Trace, trace_of

FLEET = Fleet(
    types=(GpuType(name="V100", gpu_count=8), GpuType(name="T4", gpu_count=4)),
    cluster=Cluster(manager="none", version="", pools=()),
)
PHILLY = """[
{"status": "Pass", "vc": "ee", "jobid": "application_1_2", "attempts": [
    {"start_time": "2017-10-07 01:00:10", "end_time": "2017-10-07 01:00:20",
     "detail": [{"ip": "m4", "gpus": ["gpu0", "gpu1"]}, {"ip": "m5", "gpus": ["gpu0"]}]},
    {"start_time": "2017-10-07 01:01:00", "end_time": "2017-10-07 01:02:00",
     "detail": [{"ip": "m4", "gpus": ["gpu0", "gpu1", "gpu2"]}]},
    {"start_time": "2017-10-07 02:00:00", "end_time": "None", "detail": []}],
  "submitted_time": "2017-10-07 01:00:00", "user": "ce"},
{"status": "Killed", "vc": "ee", "jobid": "application_1_1", "attempts": [],
  "submitted_time": "2017-10-07 00:59:00", "user": "ce"}
]
"""
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u2,vcA,1,4,1,COMPLETED,2020-04-01 00:01:00,2020-04-01 00:02:00,2020-04-01 00:03:00,60,60
8,u2,vcA,64,4,8,COMPLETED,2020-04-01 00:01:00,2020-04-01 00:02:00,2020-04-01 00:03:00,60,60
"""
LUCID = """job_id,user,vc,jobname,gpu_num,cpu_num,state,submit_time,duration,dataset,model,batchsize,amp,speed,gpu_util
5,u2,vcA,train,1,4,COMPLETED,2020-04-01 00:01:00,60,CIFAR-10,ResNet18,64,1,9.5,80.1
6,u2,vcA,train,2,4,COMPLETED,2020-04-01 00:02:00,70,Mars,Unknown,32,0,9.5,80.1
"""
PAI_JOBS = "j1,i1,ada,Terminated,100.0,400.0\nj2,i2,bob,Terminated,90.0,250.0\n"
PAI_TASKS = """j1,ps,1.0,Terminated,110.0,400.0,600.0,29.2,,
j1,worker,1.0,Terminated,120.0,400.0,600.0,29.2,25.0,T4
j1,evaluator,3.0,Terminated,120.0,220.0,600.0,29.2,50.0,T4
j2,worker,1.0,Failed,150.0,250.0,600.0,29.2,200.0,V100
j2,tensorflow,1.0,Running,150.0,,600.0,29.2,100.0,V100
j3,tensorflow,1.0,Terminated,200.0,260.0,600.0,29.2,100.0,MISC
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,6000,12288,1,460,,LS,Running,427061,427200,427100
pod-1,6000,12288,1,1000,T4,LS,Succeeded,427062,427200,427100
pod-2,6000,12288,8,1000,V100M16|V100,LS,Failed,427063,427200,427100
pod-3,6000,12288,1,1000,,LS,Pending,427063,427200,
pod-4,6000,12288,0,0,,LS,Running,427063,427200,427100
"""
GAVEL = (
    "ResNet-18 (batch size 64)\tpython3 a.py\t-n\t1\t500\t0.000000\t2\n"
    "A3C\tcd %s/b && python3 b.py\trl\t-max\t1\t300\t2\t1\t-1.000000\t6\n"
)
STEPS_PER_S = {"('ResNet-18 (batch size 64)', 1)": 5.0, "('ResNet-18 (batch size 64)', 2)": 9.0, "('A3C', 2)": 3.0}
SACCT = (
    "JobID|User|Submit|ElapsedRaw|TimelimitRaw|AllocTRES\n7|ann|2026-10-01T10:00:00|60|120|gres/gpu:v100=2,gres/gpu=2\n"
)
YARN = json.dumps({"apps": {"app": []}})
EXCERPTS = {
    "philly": PHILLY,
    "helios": HELIOS,
    "lucid": LUCID,
    "alibaba-2020": PAI_TASKS,
    "alibaba-2023": OPENB,
    "gavel": GAVEL,
    "sacct": SACCT,
    "yarn": YARN,
    "table": "job_id,submit_time,duration,gpu_num\na,0,60,1\n",
}


def written(folder: Path, text: str) -> Path:
    """Return a trace, with what belongs beside it."""
    (folder / "pai_job_table.csv").write_text(PAI_JOBS)
    (folder / RATES).write_text(json.dumps({"v100": {name: {"null": rate} for name, rate in STEPS_PER_S.items()}}))
    path = folder / "trace"
    path.write_text(text)
    return path


def read(folder: Path, name: str, text: str | None = None) -> Trace:
    path = written(folder, EXCERPTS[name] if text is None else text)
    reader = find_format(path, name).read
    assert reader is not None
    return trace_of(reader(path), str(path), FLEET, is_foreign=True)


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """Return id, submission after the first, time, GPUs, part of a GPU, type and user of each job."""
    jobs = trace.jobs
    kinds = [jobs.kinds[kind] for kind in jobs.kind]
    return [
        (job_id, submit_s - jobs.submit_s[0], work_s, count, kind.share_percent, kind.gpu_type, jobs.users[user])
        for job_id, submit_s, work_s, count, kind, user in zip(
            jobs.ids, jobs.submit_s, jobs.work_s, jobs.gpu_count, kinds, jobs.user, strict=True
        )
    ]


def test_the_command_offers_every_format() -> None:
    assert tuple(one.name for one in FORMATS) == commands.FORMATS
    assert EXCERPTS.keys() == {*commands.FORMATS}


@pytest.mark.parametrize("name", EXCERPTS)
def test_a_format_is_recognised_by_itself(name: str, tmp_path: Path) -> None:
    assert find_format(written(tmp_path, EXCERPTS[name])).name == name


def test_philly_s_job_has_the_time_of_its_attempts_and_the_gpus_of_the_first(tmp_path: Path) -> None:
    trace = read(tmp_path, "philly")
    assert rows(trace) == [("application_1_2", 0, 70, 3, 100, None, "ce")]
    assert (trace.lines, trace.left_out) == ([2], 1)


def test_helios_s_jobs_are_read_and_those_too_large_for_the_cluster_are_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, "helios")
    assert rows(trace) == [("7", 0, 60, 1, 100, None, "u2")]
    assert trace.elsewhere == {"64 of one type": 1}


def test_lucid_s_jobs_have_lucid_s_models(tmp_path: Path) -> None:
    trace = read(tmp_path, "lucid")
    assert [row[:4] for row in rows(trace)] == [("5", 0, 60, 1), ("6", 60, 70, 2)]
    known, unknown = trace.jobs.kinds
    assert (known.model, known.workload.batch_size, known.workload.precision) == ("gavel:resnet18@32", 64, "fp16")
    assert unknown.model is None


def test_alibaba_s_tasks_of_2020_have_shares_or_the_whole_gpus_of_their_instances(tmp_path: Path) -> None:
    trace = read(tmp_path, "alibaba-2020")
    assert rows(trace) == [
        ("j2/worker", 0, 100, 2, 100, "V100", "bob"),
        ("j1/worker", 10, 280, 1, 25, "T4", "ada"),
        ("j1/evaluator", 10, 100, 2, 100, "T4", "ada"),  # three halves
    ]
    assert (trace.left_out, trace.elsewhere) == (2, {"MISC": 1})


def test_alibaba_s_pods_of_2023_have_shares(tmp_path: Path) -> None:
    trace = read(tmp_path, "alibaba-2023")
    assert rows(trace) == [
        ("pod-0", 0, 100, 1, 46, None, "unknown"),
        ("pod-1", 1, 100, 1, 100, "T4", "unknown"),
        ("pod-2", 2, 100, 8, 100, None, "unknown"),
    ]
    assert trace.left_out == 2


def test_gavel_s_jobs_take_their_steps_at_gavel_s_rate(tmp_path: Path) -> None:
    """Of lines with 7 cells, whose jobs are Philly's, the rate of one GPU counts on any number of them."""
    trace = read(tmp_path, "gavel")
    assert rows(trace) == [("1", 0, 100, 2, 100, None, "unknown"), ("2", 6, 100, 2, 100, None, "unknown")]
    assert [kind.model for kind in trace.jobs.kinds] == ["gavel:resnet18@32", "gavel:a3c@80"]
    assert trace.jobs.kinds[0].workload.batch_size == 64


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("philly", PHILLY.replace('"user": "ce"},', '"user": 3},'), "line 2 .* must be one of Philly's; got: .*user"),
        ("philly", PHILLY.replace('"user": "ce"},', '"user": ?},'), "in JSON; got, on line 8: Expecting value"),
        ("philly", PHILLY.replace("01:00:20", "noon"), "line 2 .* must be one of Philly's; got: .*noon"),
        ("philly", "[" * 5000, "in JSON; got, on line 1: maximum recursion"),
        ("philly", '[{"jobid": ' + "9" * 5000 + "}]", "line 1 .* must be one of Philly's; got: .*jobid"),
        ("philly", "[", "on line 1: Expecting value"),
        ("philly", "[]\n junk", "must end with its list of jobs; got 'junk' behind it"),
        ("helios", HELIOS.replace(",60,60", ",x,60", 1), "'duration' .*line 2 must be a number.* got 'x'"),
        ("lucid", LUCID.replace(",64,1,", ",many,1,"), "'batchsize' .*line 2 must be a number.* got 'many'"),
        ("alibaba-2020", PAI_TASKS.replace(",50.0,", ",-1,"), "'plan_gpu' .*line 3 must be a number.* got '-1'"),
        ("alibaba-2020", PAI_TASKS + "j4,ps\n", "10; got 2 on line 7"),
        ("alibaba-2023", "", "must have a column 'creation_time'; got an empty file"),
        ("alibaba-2023", OPENB.replace(",460,", ",nan,"), "'gpu_milli' .*line 2 must be a number.* got 'nan'"),
        ("alibaba-2023", OPENB.replace("gpu_milli", "milli"), "must have a column 'gpu_milli'"),
        ("gavel", GAVEL + "LM\t1\n", "Line 3 .*must have 7 or 10 cells, by tabs; got 2"),
        (
            "gavel",
            GAVEL.replace("A3C", "A4C"),
            f"'job_type' .*line 2 must be one that has a rate in {RATES}; got 'A4C'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence_with_its_line(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=words):
        read(tmp_path, name, text)


def test_what_belongs_beside_a_trace_is_asked_for(tmp_path: Path) -> None:
    tasks, gavel = tmp_path / "pai_task_table.csv", tmp_path / "gavel.trace"
    tasks.write_text(PAI_TASKS)
    gavel.write_text(GAVEL)
    for path, words in ((tasks, "pai_job_table.csv' must be a readable"), (gavel, f"{RATES}' must be a readable")):
        with pytest.raises(RequestError, match=words):
            list((find_format(path).read or pytest.fail)(path))
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RequestError, match=f"{path}' must be a readable"):
            list((find_format(path, "alibaba-2020").read or pytest.fail)(path))
    name = "('ResNet-18 (batch size 64)', 2)"
    deep, minus = '{"v100": ' + "[" * 5000, '{"v100": {"' + "-" * 200_000 + '1": {"null": 1}}}'
    large = json.dumps({"v100": {name: {"null": 0}}}).replace(": 0}", ": " + "9" * 5000 + "}")
    for text, words in ((deep, "must be Gavel's"), (minus, "must be Gavel's"), (large, "'job_type' .*line 1")):
        (tmp_path / RATES).write_text(text)
        with pytest.raises(RequestError, match=words):
            list((find_format(gavel).read or pytest.fail)(gavel))
    (tmp_path / RATES).write_text("{}")
    with pytest.raises(RequestError, match=f"must be Gavel's {RATES}; got: 'v100'"):
        list((find_format(gavel).read or pytest.fail)(gavel))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from([one.name for one in FORMATS if one.read]), text=st.text(max_size=100), cut=st.integers(0))
def test_any_text_is_read_or_refused(name: str, text: str, cut: int, tmp_path: Path) -> None:
    excerpt = EXCERPTS[name]
    place = cut % len(excerpt)
    try:
        assert len(read(tmp_path, name, excerpt[:place] + text + excerpt[place:]).jobs) > 0
    except RequestError:
        return


def simulated(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(commands.simulate, [*words, "--repetitions=1", "--json"], catch_exceptions=False)
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("name", sorted({*EXCERPTS} - {"yarn"}))
def test_a_trace_of_each_format_is_simulated(name: str, tmp_path: Path) -> None:
    document = simulated("--jobs", str(written(tmp_path, EXCERPTS[name])), "--policy", "slots", "--policy", "price")
    assert all(one["gpu_hours"] > 0 for one in document["policies"])
    assert any(f"format {name}" in note for note in document["notes"]) == (name != "table")


def test_another_format_than_the_file_has_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, OPENB)
    for name, words in (("gavel", "7 or 10 cells"), ("sacct", "must be what 'sacct --parsable2' or YARN's")):
        result = CliRunner().invoke(commands.simulate, ["--jobs", str(path), "--format", name])
        assert words in str(result.exception)


PARTS = "job_id,submit_time,duration,gpu_num\n" + "".join(f"{job},0,3600,0.25\n" for job in range(6)) + "6,0,3600,1\n"


@pytest.mark.parametrize("policy", commands.POLICIES)
def test_who_asks_for_a_part_of_a_gpu_has_it_under_every_policy(policy: str, tmp_path: Path) -> None:
    """Six quarters are on two GPUs, and a whole one beside them; nobody is slowed."""
    jobs, cluster = tmp_path / "jobs.csv", tmp_path / "cluster.toml"
    jobs.write_text(PARTS)
    cluster.write_text('[[pools]]\nsite_type = "v100"\ngpu_count = 3\n')
    (one,) = simulated("--jobs", str(jobs), "--cluster", str(cluster), "--policy", policy)["policies"]
    assert (one["makespan_s"], one["gpu_hours"]) == (pytest.approx(3600, rel=0.02), pytest.approx(3, rel=0.02))
    assert one["shared_time"] == pytest.approx(2 / 3, rel=0.02)
    assert one["freed_hours"] == pytest.approx(4, rel=0.05)  # six jobs on two GPUs


def test_a_part_of_a_gpu_is_read_in_whole_percent_and_no_model_is_drawn_for_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(PARTS.replace("0.25", "0.07"))
    jobs = scenario(Source(jobs_file=path), 0).jobs
    drawn = with_drawn_models(jobs, 0)
    assert [(kind.share_percent, kind.model is None) for kind in drawn.kinds] == [(7, True), (100, False)]
