"""What a YARN submission asks for."""

from __future__ import annotations

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Context
from gpusage_hooks.types import DecisionRequest, GpuRequest, Job
from gpusage_hooks.units import MIB
from gpusage_yarn import plugin
from gpusage_yarn.settings import YarnSettings
from gpusage_yarn.submission.request import parse_submission, read_request


def job_of(**fields: str) -> Job:
    job = parse_submission(DecisionRequest(manager="yarn", fields=fields))
    assert job is not None
    return job


def test_another_manager_s_submission_is_not_ours() -> None:
    context = Context(settings=YarnSettings(), catalogue=builtin_catalogue())
    assert plugin.parse_submission(DecisionRequest(manager="slurm"), context) is None


def test_a_container_asks_for_one_gpu() -> None:
    job = job_of(user="alice", queue="root.research", card="abc", comment="model=r.onnx,batch=64")
    assert job.request == GpuRequest(
        gpu_count=1, partitions=("root.research",), bindable=False, process_count=4, repeatable=False
    )
    assert job.request_text == "yarn.io/gpu: 1"
    assert job.card == "abc"
    assert job.model_request is not None
    assert job.model_request.workload.batch_size == 64


def test_a_label_is_a_type_that_the_user_insists_on() -> None:
    job = job_of(label="a100")
    assert (job.request.gpu_type, job.request_text) == ("a100", "yarn.io/gpu: 1 on a100")


def test_a_label_expression_is_kept_as_it_is() -> None:
    assert job_of(label="a100 && ssd").request.obstacles


def test_who_says_nothing_to_us_is_let_through() -> None:
    assert job_of(comment="nightly run").model_request is None


def test_a_malformed_comment_of_ours_is_refused() -> None:
    with pytest.raises(RequestError, match="batch"):
        job_of(comment="model=r.onnx,batch=many")


@pytest.mark.parametrize("card", ["", "A" * 70_000], ids=["none", "too long"])
def test_half_a_card_is_none(card: str) -> None:
    assert job_of(card=card).card is None


def test_only_a_container_whose_size_is_known_can_be_held_to_a_label() -> None:
    sized = read_request({"memory_mib": "2048", "vcores": "4"})
    assert (sized.cpu_count, sized.host_memory_bytes, sized.bindable) == (4, 2048 * MIB, True)
    assert not read_request({}).bindable
    assert not read_request({"memory_mib": "much"}).bindable


def test_only_our_own_master_runs_a_task_again_that_ran_out_of_memory() -> None:
    assert read_request({"memory_mib": "2048"}).repeatable
    assert not read_request({"memory_mib": "2048", "rescue": "0"}).repeatable, "--no-rescue"
    assert not read_request({}).repeatable, "Spark's, for example"


def test_other_clients_containers_may_start_several_processes_unless_their_user_says_how_many() -> None:
    assert read_request({"memory_mib": "2048"}).process_count == 1, "submit's own runs the command"
    assert job_of(comment="model=r.onnx").request.process_count == 4
    named = job_of(comment="model=r.onnx,processes=2")
    assert named.request.process_count == 1, "its need is of both"
    assert named.model_request is not None
    assert named.model_request.workload.processes == 2
