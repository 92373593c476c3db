"""Who runs on shares now, by the records of their decisions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from gpusage.service.job_monitor import NeighbourLookup, make_neighbour
from gpusage.store.decisions import DecisionStore
from gpusage_hooks import samples
from gpusage_hooks.types import DecisionRecord, GpuRequest, Neighbour, Workload

NEED = samples.need(samples.gpus()[0])
RUNNING = replace(samples.marked_job(), state="running", nodes=("n1",))
WORKLOAD = Workload(mode="infer")


def record(share: int | None = None, threads: int | None = None) -> DecisionRecord:
    plain = samples.record()
    request = GpuRequest(gpu_count=0, mps_thread_percent=share, thread_cap_percent=threads)
    decision = replace(plain.decision, request=request, need=NEED)
    return replace(plain, decision=decision, workload=WORKLOAD)


def test_a_share_is_a_neighbour_with_the_threads_that_it_may_use() -> None:
    there = Neighbour(nodes=("n1",), share_percent=40, thread_percent=40, need=NEED, workload=WORKLOAD)
    assert make_neighbour(RUNNING, record(share=40)) == there
    wide = record(share=40, threads=80)
    assert make_neighbour(RUNNING, wide) == replace(there, thread_percent=80)


def test_a_whole_gpu_or_what_was_not_predicted_is_none() -> None:
    assert make_neighbour(RUNNING, record()) is None
    known = record(share=40)
    assert make_neighbour(RUNNING, replace(known, workload=None)) is None
    assert make_neighbour(RUNNING, replace(known, decision=replace(known.decision, need=None))) is None


def test_a_record_is_read_once_while_its_job_runs() -> None:
    requests: list[str] = []

    def find(number: str) -> DecisionRecord | None:
        requests.append(number)
        return record(share=40) if number == "69215f4a0c3e" else None

    store = cast("DecisionStore", SimpleNamespace(find=find))
    lookup = NeighbourLookup(store)
    gone = replace(RUNNING, job_id="2", mark=RUNNING.mark.replace("3e", "3f"))
    jobs = [RUNNING, replace(RUNNING, job_id="3", nodes=()), replace(RUNNING, mark="the site's own"), gone]
    assert [job.nodes for job in lookup.find(jobs)] == [("n1",)]
    lookup.find(jobs)
    assert requests == ["69215f4a0c3e", "69215f4a0c3f", "69215f4a0c3f"]
    for _ in range(10):
        lookup.find(jobs)
    assert requests[3:] == ["69215f4a0c3f"], "what is gone is not looked up in each run"
    assert lookup.find([]) == ()
    lookup.find([RUNNING])
    assert requests[4:] == ["69215f4a0c3e"]
