"""A real gpusaged decides the second run of a job by what the first one really did."""

from __future__ import annotations

import re
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusage.graphs.card.text import encode
from gpusage.store.opening import open_store
from gpusage_hooks.types import DecisionRecord, Usage
from graphs import convolution_graph

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

CARD = encode(convolution_graph(depth=16, channels=128))
GIB = 2**30


def request_decision(daemon: Daemon, **fields: str) -> dict[str, Any]:
    """Return the answer to a training that keeps its GPU busy, as its graph tells it."""
    usual = {"comment": "model=net.onnx,batch=32", "name": "train", "account": "physics"}
    return daemon.ask(daemon.question(CARD, **{**usual, **fields}))


def ran(daemon: Daemon, record: DecisionRecord, utilization: float, user: str = "1000", **fields: object) -> None:
    """Put into the store that the job of *record*, or the same of another *user*, ran alone on a whole V100."""
    now_s = time.time()
    assert record.identity is not None
    number = f"{int(user):032x}"
    other = replace(record, number=number, identity=replace(record.identity, user=user))
    usage = Usage(
        number=number if user != "1000" else record.number,
        manager="slurm",
        job_id="7",
        user="ada",
        job_name="train",
        gpu="v100-sxm2-16gb",
        outcome="completed",
        started_at_s=now_s - 3600,
        ended_at_s=now_s,
        sampled_s=3600,
        alone_s=3600,
        gpu_utilization=utilization,
        memory_bytes=3 * GIB,
    )
    usage = replace(usage, **fields)  # type: ignore[arg-type]
    with closing(open_store(f"sqlite:///{daemon.store}")) as store:
        if user != "1000":
            store.record_all([other])
        store.record_usage([usage])


def test_the_second_run_of_a_job_is_decided_by_its_first(idle: Daemon) -> None:
    """Its graph says that it fills the GPU; its first run shows that it waits for its host most of the time."""
    idle.learn_every(0.1)
    idle.behave(silent=True)
    idle.start()
    first = request_decision(idle)
    assert first["code"] == "KEEP"
    (record,) = idle.records()
    assert record.identity is not None
    assert (record.identity.user, record.identity.account, record.identity.job_name) == ("1000", "physics", "train")
    assert record.predicted_utilization is not None
    assert record.predicted_utilization > 0.9
    ran(idle, record, utilization=0.2)
    idle.wait(lambda: request_decision(idle)["code"] == "REWRITE")
    answer = request_decision(idle)
    assert answer["set.gres"].startswith("mps:")
    assert "1 earlier run was busy 20 % (" in answer["message"]
    assert request_decision(idle, user_id="1001")["code"] == "KEEP"  # a stranger's run decides nobody's job
    renamed = request_decision(idle, name="other")
    assert "1 earlier run of this model was busy 20 % (" in renamed["message"]


def memory(answer: dict[str, Any]) -> str:
    """Return what an answer says of memory: ``3.3 GiB (2.5-5.2)``."""
    match = re.search(r"[0-9.]+ GiB \([^()]*\)", answer["message"])
    assert match, answer
    return match[0]


def test_strangers_idle_jobs_and_their_lack_of_memory_decide_nobody_s_job(idle: Daemon) -> None:
    """Two idle jobs made a third user's job a share; one `out_of_memory` told another that no GPU is large enough.

    Three users move nothing out of what the graph tells, however idle theirs were; own runs do.
    """
    idle.learn_every(0.1)
    idle.behave(silent=True)
    idle.start()
    alone = request_decision(idle, user_id="1005")
    record = idle.records()[0]
    for user in ("1001", "1002"):
        ran(idle, record, utilization=0.02, user=user)
    ran(idle, record, 0.02, user="1003", outcome="out_of_memory", memory_bytes=39 * GIB, gpu="h100-sxm5-80gb")
    ran(idle, record, utilization=0.9, user="1004")  # whose own second run shows that all has been learned
    idle.wait(lambda: "1 earlier run" in request_decision(idle, user_id="1004")["message"])
    reported = request_decision(idle, user_id="1005")
    assert (alone["code"], reported["code"]) == ("KEEP", "KEEP")
    assert "runs of this model of 3 other users count, within the prediction from the graph" in reported["message"]
    assert memory(reported) == memory(alone)
    ran(idle, record, utilization=0.2, user="1005")
    idle.wait(lambda: request_decision(idle, user_id="1005")["code"] == "REWRITE")


def test_nothing_is_learned_where_the_site_turns_it_off(idle: Daemon) -> None:
    idle.learn_every(0.1, enabled=False)
    idle.behave(silent=True)
    idle.start()
    request_decision(idle)
    (record,) = idle.records()
    ran(idle, record, utilization=0.2)
    time.sleep(0.5)
    assert request_decision(idle)["code"] == "KEEP"
