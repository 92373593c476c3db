"""What a Slurm submission asks for."""

from __future__ import annotations

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.service.decision_cache import AccessRecordingMapping
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Context
from gpusage_hooks.types import DecisionRequest, GpuRequest
from gpusage_hooks.units import MIB
from gpusage_slurm import plugin
from gpusage_slurm.settings import SlurmSettings
from gpusage_slurm.submission.request import describe_request, parse_submission, read_request
from gpusage_slurm.tres import Tres, parse_tres, without_gpus

CONTEXT = Context(settings=SlurmSettings(), catalogue=builtin_catalogue())
ONE_GPU = {"tres_per_node": "gres:gpu:1"}

UNNAMED = ("qos=normal", "account=")
"""The scopes of a job that names neither."""


@pytest.mark.parametrize(
    "text", ["gres:gpu:1", "gres/gpu:1", "gres/gpu=1", "gres:gpu", "gres/gpu", "gres:GPU:1", " gres:gpu:1 "]
)
def test_every_spelling_of_one_gpu_is_one_gpu(text: str) -> None:
    assert read_request({"tres_per_node": text}) == GpuRequest(gpu_count=1, scopes=UNNAMED)


@pytest.mark.parametrize("text", ["gres:gpu:v100:1", "gres/gpu:v100:1", "gres/gpu:v100=1", "gres:gpu:v100"])
def test_a_type_that_the_user_named_is_kept(text: str) -> None:
    assert read_request({"tres_per_node": text}) == GpuRequest(gpu_count=1, gpu_type="v100", scopes=UNNAMED)


@pytest.mark.parametrize(
    ("fields", "gpu_count"),
    [
        ({"tres_per_node": "gres:gpu:2"}, 2),
        ({"tres_per_node": "gres:gpu:2", "min_nodes": "3"}, 6),  # 2 a node on 3 nodes
        ({"tres_per_job": "gres:gpu:4", "min_nodes": "2"}, 4),
        ({"tres_per_task": "cpu:4,gres/gpu=2", "num_tasks": "3"}, 6),  # 2 a task in 3 tasks
        ({"tres_per_task": "gres/gpu=1", "ntasks_per_node": "3", "min_nodes": "2"}, 6),
        ({"tres_per_socket": "gres:gpu:1", "sockets_per_node": "2", "min_nodes": "2"}, 4),  # 1 x 2 x 2
        ({"tres_per_node": "gres:gpu:v100:1,gres:gpu:a100:1"}, 2),
        ({"tres_per_node": "gres:gpu:1k"}, 1024),
        ({"tres_per_node": "gres:gpu:0"}, 0),
        ({"tres_per_node": "gres:nvme:1", "tres_per_task": "cpu:2"}, 0),
        ({"tres_per_node": "(null)"}, 0),
        ({"tres_per_node": "gpu:1"}, 0),  # without the prefix Slurm reads no GPU in it
        ({}, 0),
    ],
)
def test_gpus_are_counted_over_nodes_sockets_and_tasks(fields: dict[str, str], gpu_count: int) -> None:
    assert read_request(fields).gpu_count == gpu_count


@pytest.mark.parametrize(
    ("fields", "clause"),
    [
        ({"script": "0"}, "only batch jobs"),
        ({"script_options": "cpus-per-gpu"}, "its script or environment has --cpus-per-gpu"),
        ({"script_options": "unread"}, "too long"),
        ({"het": "1"}, "heterogeneous"),
        ({"cpus_per_tres": "gres:gpu:4"}, "--cpus-per-gpu"),
        ({"mem_per_tres": "gres:gpu:4096"}, "--mem-per-gpu"),
        ({"ntasks_per_tres": "2"}, "--ntasks-per-gpu"),
        ({"tres_freq": "gpu:high"}, "--gpu-freq"),
        ({"tres_bind": "gres:gpu:closest"}, "--gpu-bind"),
        ({"tres_bind": "gres:gpu:per_task:1"}, "--gpu-bind"),
        ({"shared": "0"}, "--exclusive"),
        ({"max_nodes": "4"}, "several nodes"),
        ({"num_tasks": "4"}, "--ntasks=4"),
        ({"ntasks_per_node": "4"}, "--ntasks=4"),  # sbatch gives no number of tasks then (22.05 to 26.05)
        ({"tres_per_job": "gres:gpu:1"}, "several places"),
        ({"tres_per_node": "gres:gpu:v100:1,gres:gpu:a100:1"}, "several GPU types"),
        ({"tres_per_node": "gres:gpu:1,gres:mps:50"}, "gres/mps is already"),
        ({"tres_per_node": "gres:gpu:1,gres/shard:2"}, "gres/shard is already"),
        ({"tres_per_node": "gres:gpu:v100:many"}, "gres:gpu:v100:many is not understood"),
    ],
)
def test_what_a_share_would_break_is_said_in_the_users_words(fields: dict[str, str], clause: str) -> None:
    obstacles = read_request({"tres_per_node": "gres:gpu:1", **fields}).obstacles
    assert len(obstacles) == 1
    assert clause in obstacles[0]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"script": "1", "het": "0", "shared": "1", "num_tasks": "1", "min_nodes": "1", "max_nodes": "1"},
        {"tres_per_node": "", "tres_per_task": "gres/gpu=1", "tres_bind": "gres/gpu:per_task:1"},  # implied from 23.11
        {"cpus_per_tres": "", "mem_per_tres": "(null)", "ntasks_per_tres": "0"},
        {"num_tasks": "1", "ntasks_per_node": "4"},  # at most four of one
    ],
)
def test_an_ordinary_job_has_no_obstacle(fields: dict[str, str]) -> None:
    assert read_request({"tres_per_node": "gres:gpu:1", **fields}) == GpuRequest(gpu_count=1, scopes=UNNAMED)


@pytest.mark.parametrize("place", ["tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"])
def test_a_list_that_is_longer_than_people_write_is_not_read(place: str) -> None:
    """2,000 words took 30 ms to read, and everybody waits while gpusaged reads."""
    fields = {"tres_per_node": "gres/gpu:1", place: "gres/gpu:1" + ",a=b" * 2000}
    assert "a list of more than 256 characters is not understood" in read_request(fields).obstacles
    assert len(describe_request(fields)) < 100


def test_a_job_without_gpus_has_no_obstacles_either() -> None:
    assert read_request({"shared": "0", "het": "1"}) == GpuRequest(gpu_count=0, scopes=UNNAMED)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tres_per_node": "gres:gpu:1"}, "gres/gpu:1"),
        ({"tres_per_job": "gres/gpu:v100=1"}, "gres/gpu:v100:1"),
        ({"tres_per_task": "cpu:2,gres:gpu:2"}, "gres/gpu:2 per task"),
        ({"tres_per_node": "gres:mps:50"}, "gres/mps:50"),
        ({"tres_per_node": "gres:nvme:1"}, "no GPU"),
        ({"tres_per_node": "gres:gpu:1", "tres_per_job": "gres:gpu:2"}, "gres/gpu:1, gres/gpu:2 per job"),
    ],
)
def test_the_request_is_described_in_slurms_own_words(fields: dict[str, str], text: str) -> None:
    assert describe_request(fields) == text


def test_other_resources_survive_as_they_stood() -> None:
    assert without_gpus("gres:nvme:2, gres:gpu:1 ,cpu:4,gres/gpumem:3") == "gres:nvme:2,cpu:4,gres/gpumem:3"


def test_a_count_that_is_none_is_unknown_and_not_zero() -> None:
    (resource,) = parse_tres("gres/gpu:v100:x")
    assert resource == Tres(text="gres/gpu:v100:x", name="gpu", generic=True, kind="v100", count=None)


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"comment": "model=c.onnx", "variable_comment": "model=v.onnx", "script_comment": "model=s.onnx"}, "c.onnx"),
        ({"comment": "rule_train", "variable_comment": "model=v.onnx", "script_comment": "model=s.onnx"}, "v.onnx"),
        ({"comment": "rule_train", "variable_comment": "mine", "script_comment": "model=s.onnx"}, "s.onnx"),
    ],
)
def test_a_comment_that_says_nothing_to_us_hides_no_other_words(fields: dict[str, str], model: str) -> None:
    job = parse_submission(DecisionRequest(manager="slurm", fields={"tres_per_node": "gres:gpu:1", **fields}))
    assert job is not None
    assert job.model_request is not None
    assert job.model_request.model == model


@pytest.mark.parametrize(
    ("fields", "shows"),
    [
        ({"script_comment": "learn=on", "shows_model": "1"}, True),
        ({"comment": "project=x; gpusage: learn=on", "shows_model": "1"}, True),
        ({"comment": "learn=off", "script_comment": "learn=on", "shows_model": "1"}, False),
        ({"shows_model": "1"}, False),  # its site observes all jobs
        ({"script_comment": "learn=on"}, False),  # sbatch could not read the script, or has no filter of ours
    ],
)
def test_a_job_shows_its_model_where_its_user_and_our_filter_say_so(fields: dict[str, str], *, shows: bool) -> None:
    job = parse_submission(DecisionRequest(manager="slurm", fields={"tres_per_node": "gres:gpu:1", **fields}))
    assert job is not None
    assert job.shows_model is shows


def test_a_submission_becomes_a_job_with_model_and_card() -> None:
    fields = {"tres_per_node": "gres:gpu:1", "comment": "model=r.onnx,batch=8", "card": "QUJD", "features": "intel"}
    job = parse_submission(DecisionRequest(manager="slurm", fields=fields, origin="uid 1000"))
    assert job is not None
    assert job.model_request is not None
    assert (job.model_request.model, job.model_request.workload.batch_size) == ("r.onnx", 8)
    assert (job.card, job.request_text) == ("QUJD", "gres/gpu:1")
    assert job.submission.fields["features"] == "intel"


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("-D /run/here --comment=model=r.onnx", "/run/here/r.onnx"),
        ("--chdir=sub --comment=r.onnx", "sub/r.onnx"),
        ("--chdir=/x --comment=/data/r.onnx", "/data/r.onnx"),
        ("--chdir=/x --comment=timm:resnet50", "timm:resnet50"),
        ("--comment=r.onnx", "r.onnx"),
    ],
)
def test_a_scripts_model_is_looked_up_from_its_folder(line: str, model: str) -> None:
    job = parse_submission(DecisionRequest(manager="slurm", script=f"#!/bin/sh\n#SBATCH {line}\n"))
    assert job is not None
    assert job.model_request is not None
    assert job.model_request.model == model


def test_a_card_beyond_any_reason_is_dropped() -> None:
    job = parse_submission(DecisionRequest(manager="slurm", fields={"card": "A" * 65537}))
    assert job is not None
    assert job.card is None


def test_a_malformed_comment_to_us_is_an_error() -> None:
    with pytest.raises(RequestError, match="Did you mean 'batch'"):
        parse_submission(DecisionRequest(manager="slurm", fields={"comment": "model=x,btch=3"}))


def test_another_managers_submission_is_not_ours() -> None:
    assert plugin.parse_submission(DecisionRequest(manager="yarn", fields={}), CONTEXT) is None


def test_what_the_job_asks_of_its_node_is_known() -> None:
    """4 cores of 2,000 MiB each are more than 6,000 MiB of the node."""
    request = read_request(ONE_GPU | {"cpus_per_task": "4", "min_mem_per_cpu": "2000", "min_mem_per_node": "6000"})
    assert (request.cpu_count, request.host_memory_bytes) == (4, 8000 * MIB)
    assert (read_request(ONE_GPU).cpu_count, read_request(ONE_GPU).host_memory_bytes) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "bindable"),
    [
        ({}, True),
        ({"features": "ib&nvme", "partition": "gpu", "qos": "short"}, True),
        ({"features": "[rack1|rack2]"}, False),
        ({"prefer": "a100"}, False),
        ({"req_nodes": "n1"}, False),
        ({"exc_nodes": "n1"}, False),
        ({"reservation": "course"}, False),
        ({"pn_min_tmp_disk": "100"}, False),
        ({"threads_per_core": "1"}, False),
        ({"tres_per_node": "gres:gpu:1,gres:nvme:1"}, False),
    ],
)
def test_a_job_that_something_else_ties_to_its_nodes_is_not_bound_to_a_gpu_type(
    fields: dict[str, str], *, bindable: bool
) -> None:
    assert read_request(ONE_GPU | fields).bindable is bindable


@pytest.mark.parametrize(
    ("fields", "avoided", "steerable"),
    [
        ({}, (), True),
        ({"exc_nodes": "n1,n-2.site"}, ("n1", "n-2.site"), True),
        ({"exc_nodes": "n[1-3]"}, (), False),  # which these are is not for us to know
        ({"exc_nodes": ",".join(f"n{number}" for number in range(9))}, (), False),  # little room is left for more
        ({"req_nodes": "n1"}, (), False),
        ({"reservation": "course", "exc_nodes": "n1"}, ("n1",), False),
    ],
)
def test_a_job_can_be_kept_off_nodes_where_all_that_ties_it_to_nodes_is_known(
    fields: dict[str, str], avoided: tuple[str, ...], *, steerable: bool
) -> None:
    request = read_request(ONE_GPU | fields)
    assert (request.avoided_nodes, request.steerable) == (avoided, steerable)


def test_an_answer_never_rests_on_all_fields_there_are() -> None:
    """Else no ruling would hold for a second job."""
    fields = AccessRecordingMapping(ONE_GPU | {"exc_nodes": "n1", "name": "train"})
    read_request(fields)
    seen = fields.fields_read()
    assert seen is not None
    assert "name" not in seen


def test_a_job_s_folder_is_read_for_a_relative_path_alone() -> None:
    for model, is_read in (("/r.onnx", False), ("r.onnx", True)):
        fields = AccessRecordingMapping({**ONE_GPU, "work_dir": "/data", "script_comment": f"model={model}"})
        parse_submission(DecisionRequest(manager="slurm", fields=fields))
        seen = fields.fields_read()
        assert seen is not None
        assert ("work_dir" in seen) is is_read


@pytest.mark.parametrize(
    ("indices", "count"),
    [("", 1), ("7", 1), ("0-9", 10), ("0-9:3", 4), ("0-9:3%2", 2), ("1,3,5-7", 5), ("1-4%0", 4), ("x", 1), ("9-1", 1)],
)
def test_an_array_counts_the_tasks_that_may_run_at_once(indices: str, count: int) -> None:
    assert read_request({"tres_per_node": "gres:gpu:1", "array_inx": indices}).task_count == count


@pytest.mark.parametrize(
    ("fields", "gpu_count", "node_count", "node_gpu_count", "cpu_count", "gib"),
    [
        ({"tres_per_node": "gres:gpu:4"}, 4, 1, 4, 1, 0),
        ({"tres_per_node": "gres/gpu:4", "min_nodes": "2", "max_nodes": "2"}, 8, 2, 4, 1, 0),
        ({"tres_per_job": "gres:gpu:4"}, 4, 0, 1, 1, 0),  # spread over as many nodes as it takes (22.05)
        ({"tres_per_job": "gres:gpu:4", "min_nodes": "1", "max_nodes": "1"}, 4, 1, 4, 1, 0),
        ({"tres_per_job": "gres:gpu:4", "min_nodes": "2", "max_nodes": "4"}, 4, 2, 1, 1, 0),
        (
            {"tres_per_node": "gres:gpu:4", "cpus_per_tres": "gres:gpu:8", "mem_per_tres": "gres:gpu:4096"},
            4,
            1,
            4,
            32,
            16,
        ),
        ({"tres_per_task": "gres/gpu:1", "num_tasks": "4", "cpus_per_task": "6", "min_cpus": "24"}, 4, 0, 1, 6, 0),
        ({"tres_per_job": "gres:gpu:4", "cpus_per_tres": "gres:gpu:8", "mem_per_tres": "gres:gpu:4096"}, 4, 0, 1, 8, 4),
        ({"tres_per_job": "gres:gpu:8", "ntasks_per_node": "4", "cpus_per_task": "6"}, 8, 0, 1, 24, 0),
        (
            {"tres_per_node": "gres:gpu:2", "min_nodes": "2", "max_nodes": "2", "ntasks_per_node": "2"}
            | {"cpus_per_task": "6", "min_cpus": "24", "min_mem_per_cpu": "1024"},
            *(4, 2, 2, 12, 12),
        ),
        ({"tres_per_node": "gres:gpu:2", "ntasks_per_tres": "2", "cpus_per_task": "3"}, 2, 1, 2, 12, 0),
    ],
)
def test_several_gpus_ask_each_node_for_a_part(
    fields: dict[str, str], gpu_count: int, node_count: int, node_gpu_count: int, cpu_count: int, gib: int
) -> None:
    request = read_request(fields)
    assert request.obstacles == ()
    assert (request.gpu_count, request.node_count, request.node_gpu_count) == (gpu_count, node_count, node_gpu_count)
    assert (request.cpu_count, request.host_memory_bytes) == (cpu_count, gib << 30)


@pytest.mark.parametrize(
    ("fields", "clause"),
    [
        ({}, ""),
        ({"shared": "0", "tres_bind": "gres:gpu:closest", "script_options": "unread"}, ""),
        ({"num_tasks": "4", "ntasks_per_node": "4"}, ""),
        ({"num_tasks": "4"}, "it may get more nodes, and so more GPUs"),
        ({"max_nodes": "4"}, "it may get more nodes, and so more GPUs"),
        ({"script": "0"}, "only batch jobs"),
        ({"het": "1"}, "heterogeneous"),
        ({"tres_per_job": "gres:gpu:4"}, "several places"),
    ],
)
def test_whole_gpus_stay_whole_so_hardly_anything_is_in_the_way(fields: dict[str, str], clause: str) -> None:
    obstacles = read_request({"tres_per_node": "gres:gpu:4", **fields}).obstacles
    assert len(obstacles) == bool(clause)
    assert clause in "".join(obstacles)
