"""What `gpusage yarn submit` asks for, and what it refuses before anything is sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.settings.configuration import Configuration, StoreSettings
from gpusage.store.opening import open_store
from gpusage_hooks.comment import parse_model
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Code, DecisionRequest, ModelGraph, ModelRequest, SoloRun, Workload
from gpusage_yarn.cluster.configuration import CLASSES, LISTENERS
from gpusage_yarn.cluster.jmx import JmxReport, with_free_gpus
from gpusage_yarn.cluster.queues import Queue
from gpusage_yarn.cluster.snapshot import ClusterSnapshot, ContainerSize, NodeState, build_cluster, read_snapshot
from gpusage_yarn.share_plan import SHARE
from gpusage_yarn.submission.command import site_advisor
from gpusage_yarn.submission.feasibility import (
    Requirements,
    exclude_unbound_nodes,
    require_feasible,
    require_queue_limit,
    wait_for_nodes,
)
from gpusage_yarn.submission.planning import PlannedSubmission, master_label, plan_submission, record_decision

ROOT = Path(__file__).parents[4]
VIEW = read_snapshot(json.loads((ROOT / "tests/golden/yarn/3.4.2.json").read_text()).get)
MODEL = str(ROOT / "examples/models/dlrm.onnx")
LISTENER = frozenset({CLASSES[LISTENERS].rpartition(".")[2]})
SIZE = ContainerSize(memory_mib=4096, vcores=1)
MODEL_REQUEST = ModelRequest(model=MODEL, workload=Workload(batch_size=8, mode="infer"))


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return make_advisor()


@pytest.fixture(scope="module")
def graph(advisor: Advisor) -> ModelGraph:
    return advisor.read(MODEL)


def proposed(
    advisor: Advisor,
    graph: ModelGraph | None,
    snapshot: ClusterSnapshot = VIEW,
    configuration: Configuration | None = None,
    model_request: ModelRequest = MODEL_REQUEST,
    **fields: str,
) -> PlannedSubmission:
    fields = {"memory_mib": str(SIZE.memory_mib), "vcores": str(SIZE.vcores), **fields}
    job = advisor.hooks.parse_submission(
        DecisionRequest(manager="yarn", fields=fields, origin="alice"), advisor.context("yarn")
    )
    job = replace(job, model_request=model_request if graph else None)
    return plan_submission(site_advisor(advisor, configuration or Configuration()), job, graph, snapshot, SIZE)


def with_room(**free_shares: int) -> ClusterSnapshot:
    nodes = tuple(
        replace(node, free=replace(node.free, share=free_shares.get(node.label, node.free.share)))
        for node in VIEW.nodes
    )
    return replace(VIEW, nodes=nodes)


def test_a_small_model_gets_a_share_everywhere(advisor: Advisor, graph: ModelGraph) -> None:
    made = proposed(advisor, graph)
    assert made.outcome.decision.code is Code.REWRITE
    assert 0 < made.plan.share < 100
    assert sorted(made.plan.labels) == ["a100", "h100", "v100"]
    assert made.outcome.rendered.after == f"{SHARE}: {made.plan.share} on {', then '.join(made.plan.labels)}"
    assert made.line().startswith(f"yarn.io/gpu: 1 -> {made.outcome.rendered.after} | a quarter of a ")


def test_generations_with_room_come_first(advisor: Advisor, graph: ModelGraph) -> None:
    first = proposed(advisor, graph).plan.labels[0]
    made = proposed(advisor, graph, with_room(**{first: 5}))
    assert made.plan.labels[-1] == first
    assert made.plan.fallback_after_s == 30


def test_containers_of_one_training_are_kept_apart_and_those_of_inference_are_not(
    advisor: Advisor, graph: ModelGraph
) -> None:
    light = str(ROOT / "examples/models/resnet18.onnx")
    training = ModelRequest(model=light, workload=Workload(batch_size=8, alone=SoloRun(utilization=0.15)))
    made = proposed(advisor, advisor.read(light), model_request=training)
    assert (made.plan.share < 100, made.plan.apart) == (True, True)
    assert not proposed(advisor, graph).plan.apart

    phrase = "its containers never share a GPU"
    assert phrase in replace(made, plan=replace(made.plan, containers=2)).line()
    inference = proposed(advisor, graph)
    assert phrase not in made.line() + replace(inference, plan=replace(inference.plan, containers=2)).line()


def test_containers_that_train_together_get_the_gpus_that_hold_their_parts(advisor: Advisor) -> None:
    """Llama 2 7B, sharded: two GPUs need up to 43 GiB each, and an A100 has 40."""
    model_request = parse_model(
        "hf:llama-2-7b,precision=bf16-pure,optimizer=adamw,gpus=2,strategy=fsdp,checkpointing=on"
    )
    made = proposed(advisor, advisor.read("hf:llama-2-7b"), model_request=model_request, containers="2")
    assert (made.plan.share, made.plan.labels) == (100, ("h100",))
    assert "on 2 GPUs by fsdp with checkpointing" in made.line()
    assert "kept off v100" in made.line()


def test_a_plan_of_a_user_has_no_more_threads_than_its_share(advisor: Advisor, graph: ModelGraph) -> None:
    doubled = replace(advisor, rules=replace(advisor.rules, sharing=replace(advisor.rules.sharing, cap="double")))
    made = proposed(doubled, graph)
    assert made.outcome.decision.code is Code.REWRITE
    assert (made.plan.threads, made.outcome.decision.request.thread_cap_percent) == (0, None)
    assert "of the threads" not in made.line()


def test_a_generation_without_memory_for_a_container_comes_last(advisor: Advisor, graph: ModelGraph) -> None:
    first = proposed(advisor, graph).plan.labels[0]
    nodes = tuple(
        replace(node, free=replace(node.free, memory_mib=1000)) if node.label == first else node for node in VIEW.nodes
    )
    assert proposed(advisor, graph, replace(VIEW, nodes=nodes)).plan.labels[-1] == first


def test_a_free_share_that_is_spread_over_gpus_is_no_room(advisor: Advisor, graph: ModelGraph) -> None:
    first = proposed(advisor, graph).plan.labels[0]
    reported = {node.name: JmxReport(name=node.name, free=(10, 10)) for node in VIEW.nodes_with_label(first)}
    assert proposed(advisor, graph, with_free_gpus(VIEW, reported)).plan.labels[-1] == first


CPU = NodeState(name="cpu:1", label="", usable=True, total=SIZE, free=SIZE)
BARRED = replace(VIEW.queues[0], closed=frozenset({""}))


@pytest.mark.parametrize(
    ("snapshot", "queue", "expected"),
    [
        (VIEW, "", "v100"),
        (replace(VIEW, nodes=(*VIEW.nodes, CPU)), "", ""),
        (replace(VIEW, nodes=(*VIEW.nodes, CPU), queues=(BARRED,)), "", "v100"),
        (replace(VIEW, nodes=(*VIEW.nodes, replace(CPU, free=ContainerSize()))), "", "v100"),
        (
            replace(VIEW, queues=(replace(VIEW.queues[0], am_limit_reached=frozenset({"v100"})),)),
            "root.default",
            "a100",
        ),
        (
            replace(VIEW, nodes=tuple(replace(node, free=ContainerSize(share=100)) for node in VIEW.nodes)),
            "",
            "v100",
        ),
    ],
    ids=["labels alone", "a node without", "out of reach", "full", "crowded", "all full"],
)
def test_a_master_goes_where_no_gpu_is_or_where_it_has_room(
    snapshot: ClusterSnapshot, queue: str, expected: str
) -> None:
    assert master_label(snapshot, queue, ("v100", "a100")) == expected


def test_a_queue_that_yarn_may_make_is_left_to_it(advisor: Advisor, graph: ModelGraph) -> None:
    snapshot = replace(VIEW, creates_queues=True)
    assert require_feasible(snapshot, Requirements(share=SHARE, queue="root.alice", size=SIZE)) == (
        "a100",
        "h100",
        "v100",
    )
    assert proposed(advisor, graph, snapshot, queue="root.alice").plan.share < 100


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (
            ContainerSize(memory_mib=999_999, vcores=1),
            "Container's --memory-mib must be at most 16384 MiB, the most that one has on a100; got 999999. Lower",
        ),
        (
            ContainerSize(memory_mib=1, vcores=999),
            "Container's --vcores must be at most 4 vcores, .* got 999. Lower --vcores.",
        ),
    ],
)
def test_a_container_that_no_node_can_hold_is_refused(size: ContainerSize, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        require_feasible(VIEW, Requirements(share=SHARE, label="a100", size=size))


def test_a_label_on_which_nothing_binds_containers_is_left_out() -> None:
    reported = {node.name: JmxReport(name=node.name, classes=LISTENER) for node in VIEW.nodes}
    assert exclude_unbound_nodes(VIEW, ("a100", "v100"), reported) == (VIEW, [])
    bare = {**reported, **{node.name: JmxReport(name=node.name) for node in VIEW.nodes_with_label("v100")}}
    left, notes = exclude_unbound_nodes(VIEW, ("a100", "v100"), bare)
    assert left.nodes_with_label("v100") == ()
    assert notes == ["v100 is left out, because nothing binds containers to GPUs there"]
    with pytest.raises(RequestError, match=r"^Nodes with the label v100 must run gpusage's listener"):
        exclude_unbound_nodes(VIEW, ("v100",), bare)
    _, notes = exclude_unbound_nodes(VIEW, ("v100",), {})
    assert notes == ["no node with the label v100 reports whether it binds containers to GPUs"]


def test_without_a_model_a_whole_gpu_is_asked_for(advisor: Advisor) -> None:
    made = proposed(advisor, None)
    assert made.plan.share == 100
    assert made.line() == "gpusage.io/share: 100 on a100, then h100, then v100 | the job names no model"


def test_a_small_model_that_keeps_its_gpu_takes_an_old_one(advisor: Advisor) -> None:
    model = str(ROOT / "examples/models/mobilenet_v3_large.onnx")
    model_request = ModelRequest(model=model, workload=Workload(batch_size=32, mode="infer", slowdown=1.0))
    made = proposed(advisor, advisor.read(model), model_request=model_request)
    assert made.outcome.decision.code is Code.KEEP
    assert made.plan.labels == ("v100", "a100", "h100")
    assert made.line().startswith("gpusage.io/share: 100 on v100, then a100, then h100: a whole GPU kept | ")


def test_a_model_that_is_much_slower_on_an_old_gpu_keeps_a_fast_one(advisor: Advisor) -> None:
    model = str(ROOT / "examples/models/vgg16.onnx")
    model_request = ModelRequest(model=model, workload=Workload(batch_size=48, precision="fp16"))  # fits a V100
    assert proposed(advisor, advisor.read(model), model_request=model_request).plan.labels[-1] == "v100"


def test_a_named_gpu_is_the_only_one(advisor: Advisor, graph: ModelGraph) -> None:
    made = proposed(advisor, graph, label="h100")
    assert made.plan.labels == ("h100",)
    assert made.plan.fallback_after_s == 0


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_a_mode_that_the_site_has_set_is_kept_to(advisor: Advisor, graph: ModelGraph, mode: Any) -> None:
    made = proposed(advisor, graph, configuration=Configuration(mode=mode, origins={"mode": "file"}))
    assert made.plan.share == 100
    assert made.line().startswith(f"advice only in mode {mode}: yarn.io/gpu: 1 -> {SHARE}")


def test_the_kill_switch_gives_whole_gpus(advisor: Advisor, graph: ModelGraph, tmp_path: Path) -> None:
    (tmp_path / "off").touch()
    made = proposed(advisor, graph, configuration=Configuration(kill_switch=str(tmp_path / "off")))
    assert made.plan.share == 100
    assert "kill switch" in made.line()


def test_whatever_was_decided_no_gpu_is_asked_for_that_is_too_small(advisor: Advisor, tmp_path: Path) -> None:
    (tmp_path / "off").touch()
    model = str(ROOT / "examples/models/vgg16.onnx")
    model_request = ModelRequest(model=model, workload=Workload(batch_size=192))
    settings = ({"kill_switch": str(tmp_path / "off")}, {"mode": "observe", "origins": {"mode": "file"}}, {})
    for each in settings:
        made = proposed(advisor, advisor.read(model), configuration=Configuration(**each), model_request=model_request)  # type: ignore[arg-type]
        assert sorted(made.plan.labels) == ["a100", "h100"]


def test_a_decision_is_kept(advisor: Advisor, graph: ModelGraph, tmp_path: Path) -> None:
    configuration = Configuration(store=StoreSettings(url=f"sqlite:///{tmp_path}/d.db"))
    made = proposed(advisor, graph)
    number, trouble = record_decision(made, advisor, configuration.store.url)
    store = open_store(configuration.store.url)
    (remembered,) = store.latest(5)
    assert (number, trouble) == (remembered.number, "")
    assert store.find(remembered.number) == remembered
    store.close()
    assert int(remembered.number, 16) >> 16 == int(remembered.decided_at_s)  # as gpusaged numbers its own
    assert (remembered.manager, remembered.origin, remembered.model, remembered.rendered.after) == (
        "yarn",
        "alice",
        MODEL,
        made.outcome.rendered.after,
    )


def test_a_store_that_cannot_be_written_costs_no_job(advisor: Advisor, graph: ModelGraph) -> None:
    configuration = Configuration(store=StoreSettings(url="sqlite:////proc/none/d.db"))
    number, trouble = record_decision(proposed(advisor, graph), advisor, configuration.store.url)
    assert (number, bool(trouble)) == ("", True)


@pytest.mark.parametrize(
    ("snapshot", "queue", "label", "sentence"),
    [
        (
            replace(VIEW, resource_types={"vcores": 1}),
            "",
            "",
            "resource type 'gpusage.io/share'; it has vcores",
        ),
        (replace(VIEW, nodes=()), "", "", "must have nodes that offer"),
        (replace(VIEW, nodes=tuple(replace(node, label="") for node in VIEW.nodes)), "", "", "must have node labels"),
        (VIEW, "", "k80", "GPU 'k80' must be a node label"),
        (VIEW, "nope", "", "Queue 'nope' must be one of the cluster's; there are root.default"),
        (
            replace(VIEW, queues=(replace(VIEW.queues[0], labels=frozenset({"a100"})),)),
            "default",
            "h100",
            "Queue 'root.default' must be open to the label h100",
        ),
    ],
    ids=["type", "nodes", "labels", "gpu", "queue", "access"],
)
def test_what_the_cluster_cannot_run_is_told_in_one_sentence(
    snapshot: ClusterSnapshot, queue: str, label: str, sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence):
        require_feasible(snapshot, Requirements(share=SHARE, queue=queue, label=label, size=SIZE))


def test_a_queue_whose_absolute_resources_name_no_shares_is_refused_with_what_an_admin_writes(
    advisor: Advisor,
) -> None:
    """YARN takes the application, and lets it wait for ever."""
    bare = Queue(path="root.q", labels=frozenset({"*"}), missing={"a100": ("LINE=[x]",)})
    snapshot = replace(VIEW, queues=(bare,))
    assert require_feasible(snapshot, Requirements(share=SHARE, queue="q", size=SIZE)) == ("h100", "v100")
    with pytest.raises(RequestError, match=r"wait for ever; it has none\. .*can write LINE=\[x\]\."):
        require_feasible(snapshot, Requirements(share=SHARE, queue="q", label="a100", size=SIZE))
    whole = next(pool for pool in build_cluster(snapshot, advisor.catalogue).pools if pool.site_type == "a100")
    assert "root.q" not in whole.partitions  # gpusaged leaves other clients' whole GPUs there alone


def test_what_the_cluster_can_run_is_let_through() -> None:
    wanted = Requirements(share=SHARE, queue="root.default", label="a100", size=SIZE)
    assert require_feasible(VIEW, wanted) == ("a100",)


def test_nodes_that_have_not_registered_yet_are_waited_for() -> None:
    views = iter([replace(VIEW, nodes=()), replace(VIEW, nodes=VIEW.nodes[:1]), VIEW])
    missing = next(node.label for node in VIEW.nodes[1:])
    assert wait_for_nodes(lambda: next(views), SHARE, missing) is VIEW


def test_more_than_a_queue_allows_one_container_is_refused_before_it_is_sent() -> None:
    wanted = Requirements(share=SHARE, queue="default")
    queues = tuple(replace(queue, largest={SHARE: 50}) for queue in VIEW.queues)
    require_queue_limit(replace(VIEW, queues=queues), wanted, 50)
    with pytest.raises(
        RequestError, match=r"at most 50, the maximum allocation of queue 'root.default'; this job needs 100 \(a"
    ):
        require_queue_limit(replace(VIEW, queues=queues), wanted, 100)
