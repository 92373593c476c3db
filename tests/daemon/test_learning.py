"""A real gpusaged decides the second run of a job by what the first one really did."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from gpusage.graphs.card.text import encode
from gpusage.store.opening import open_store
from gpusage_hooks.types import DecisionRecord, Usage
from graphs import convolution_graph

if TYPE_CHECKING:
    from tests.daemon.conftest import Daemon

CARD = encode(convolution_graph(depth=16, channels=128))
GIB = 2**30


def asked(daemon: Daemon, **fields: str) -> dict[str, Any]:
    """Return the answer to a training that keeps its GPU busy, as its graph tells it."""
    usual = {"comment": "model=net.onnx,batch=32", "name": "train", "account": "physics"}
    return daemon.ask(daemon.question(CARD, **{**usual, **fields}))


def ran(daemon: Daemon, record: DecisionRecord, utilization: float) -> None:
    """Put into the store that the job of *record* ran alone on a whole V100."""
    now_s = time.time()
    usage = Usage(
        number=record.number,
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
    with closing(open_store(f"sqlite:///{daemon.store}")) as store:
        store.record_usage([usage])


def test_the_second_run_of_a_job_is_decided_by_its_first(idle: Daemon) -> None:
    """Its graph says that it fills the GPU; its first run shows that it waits for its host most of the time."""
    idle.learn_every(0.1)
    idle.behave(silent=True)
    idle.start()
    first = asked(idle)
    assert first["code"] == "KEEP"
    (record,) = idle.records()
    assert record.identity is not None
    assert (record.identity.user, record.identity.account, record.identity.job_name) == ("1000", "physics", "train")
    assert record.predicted_utilization is not None
    assert record.predicted_utilization > 0.9
    ran(idle, record, utilization=0.2)
    idle.wait(lambda: asked(idle)["code"] == "REWRITE")
    answer = asked(idle)
    assert answer["set.gres"].startswith("mps:")
    assert "1 earlier run was busy 20 % (" in answer["message"]
    assert asked(idle, user_id="1001")["code"] == "KEEP"  # a stranger's run decides nobody's job
    renamed = asked(idle, name="other")
    assert "1 earlier run of this model was busy 20 % (" in renamed["message"]


def test_nothing_is_learned_where_the_site_turns_it_off(idle: Daemon) -> None:
    idle.learn_every(0.1, enabled=False)
    idle.behave(silent=True)
    idle.start()
    asked(idle)
    (record,) = idle.records()
    ran(idle, record, utilization=0.2)
    time.sleep(0.5)
    assert asked(idle)["code"] == "KEEP"
