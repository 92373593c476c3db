"""What `gpusage yarn submit` asks for, and what it refuses before anything is sent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpusage.advisor import Advisor, make_advisor
from gpusage.configuration import Configuration, StoreSettings
from gpusage.store.opening import open_store
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Alone, Code, ModelGraph, ModelRequest, Submission, Workload
from gpusage_yarn.cluster import NodeState, Size, View, read_view
from gpusage_yarn.install import CLASSES, LISTENERS
from gpusage_yarn.jmx import JmxReport, with_told
from gpusage_yarn.neighbours import parse_neighbours
from gpusage_yarn.plan import SHARE
from gpusage_yarn.proposal import Proposal, master_label, propose, record
from gpusage_yarn.readiness import Wanted, require_listeners, require_ready, settled_view
from gpusage_yarn.submit import site_premises

ROOT = Path(__file__).parents[3]
VIEW = read_view(json.loads((ROOT / "tests/golden/yarn/3.4.2.json").read_text()).get)
MODEL = str(ROOT / "examples/models/dlrm.onnx")
LISTENER = frozenset({CLASSES[LISTENERS].rpartition(".")[2]})
SIZE = Size(memory_mib=4096, vcores=1)
WISH = ModelRequest(model=MODEL, workload=Workload(batch_size=8, mode="infer"))


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return make_advisor()


@pytest.fixture(scope="module")
def graph(advisor: Advisor) -> ModelGraph:
    return advisor.read(MODEL)


def proposed(
    advisor: Advisor,
    graph: ModelGraph | None,
    view: View = VIEW,
    configuration: Configuration | None = None,
    wish: ModelRequest = WISH,
    **fields: str,
) -> Proposal:
    job = advisor.hooks.parse_submission(
        Submission(manager="yarn", fields=fields, origin="alice"), advisor.context("yarn")
    )
    job = replace(job, model_request=wish if graph else None)
    return propose(site_premises(advisor, configuration or Configuration()), job, graph, view, SIZE)


def with_room(**free_shares: int) -> View:
    nodes = tuple(
        replace(node, free=replace(node.free, share=free_shares.get(node.label, node.free.share)))
        for node in VIEW.nodes
    )
    return replace(VIEW, nodes=nodes)


def test_a_small_model_gets_a_share_everywhere(advisor: Advisor, graph: ModelGraph) -> None:
    made = proposed(advisor, graph)
    assert made.verdict.decision.code is Code.REWRITE
    assert 0 < made.plan.share < 100
    assert made.plan.memory_cap_mib > 0
    assert sorted(made.plan.labels) == ["a100", "h100", "v100"]
    assert made.verdict.rendered.after == f"{SHARE}: {made.plan.share} on {', then '.join(made.plan.labels)}"
    assert made.line().startswith(f"yarn.io/gpu: 1 -> {made.verdict.rendered.after} | a quarter of a ")


def test_generations_with_room_come_first(advisor: Advisor, graph: ModelGraph) -> None:
    first = proposed(advisor, graph).plan.labels[0]
    made = proposed(advisor, graph, with_room(**{first: 5}))
    assert made.plan.labels[-1] == first
    assert made.plan.fallback_after_s == 30


def test_a_neighbour_that_would_be_hurt_is_avoided_and_generations_without_another_node_come_last(
    advisor: Advisor, graph: ModelGraph
) -> None:
    plain = proposed(advisor, graph)
    assert (plain.plan.avoid, plain.plan.need.partition(",")[0]) == ((), "mode=infer")
    first = next(node for node in VIEW.nodes if node.label == plain.plan.labels[0])
    tight = plain.plan.need + ",step=0.002:0.003,batch=8,latency=0.002"  # which is promised, and might not hold
    view = replace(VIEW, neighbours=parse_neighbours(f"{first.name} 40 {tight}"))
    light = str(ROOT / "examples/models/resnet18.onnx")
    training = ModelRequest(model=light, workload=Workload(batch_size=8, alone=Alone(utilization=0.15)))
    made = proposed(advisor, advisor.read(light), view, wish=training)
    assert made.plan.share < 100
    assert made.plan.avoid == (first.name,)
    assert made.plan.labels[0] != first.label
    assert "kept off" in made.line()


def test_a_generation_without_memory_for_a_container_comes_last(advisor: Advisor, graph: ModelGraph) -> None:
    first = proposed(advisor, graph).plan.labels[0]
    nodes = tuple(
        replace(node, free=replace(node.free, memory_mib=1000)) if node.label == first else node for node in VIEW.nodes
    )
    assert proposed(advisor, graph, replace(VIEW, nodes=nodes)).plan.labels[-1] == first


def test_a_free_share_that_is_spread_over_gpus_is_no_room(advisor: Advisor, graph: ModelGraph) -> None:
    first = proposed(advisor, graph).plan.labels[0]
    told = {node.name: JmxReport(name=node.name, free=(10, 10)) for node in VIEW.of_label(first)}
    assert proposed(advisor, graph, with_told(VIEW, told)).plan.labels[-1] == first


CPU = NodeState(name="cpu:1", label="", usable=True, total=SIZE, free=SIZE)
BARRED = replace(VIEW.queues[0], closed=frozenset({""}))


@pytest.mark.parametrize(
    ("view", "queue", "expected"),
    [
        (VIEW, "", "v100"),
        (replace(VIEW, nodes=(*VIEW.nodes, CPU)), "", ""),
        (replace(VIEW, nodes=(*VIEW.nodes, CPU), queues=(BARRED,)), "", "v100"),
        (replace(VIEW, nodes=(*VIEW.nodes, replace(CPU, free=Size()))), "", "v100"),
        (replace(VIEW, queues=(replace(VIEW.queues[0], crowded=frozenset({"v100"})),)), "root.default", "a100"),
        (
            replace(VIEW, nodes=tuple(replace(node, free=Size(share=100)) for node in VIEW.nodes)),
            "",
            "v100",
        ),
    ],
    ids=["labels alone", "a node without", "out of reach", "full", "crowded", "all full"],
)
def test_a_master_goes_where_no_gpu_is_or_where_it_has_room(view: View, queue: str, expected: str) -> None:
    assert master_label(view, queue, ("v100", "a100")) == expected


def test_a_queue_that_yarn_may_make_is_left_to_it(advisor: Advisor, graph: ModelGraph) -> None:
    view = replace(VIEW, makes_queues=True)
    assert require_ready(view, Wanted(share=SHARE, queue="root.alice", size=SIZE)) == ("a100", "h100", "v100")
    assert proposed(advisor, graph, view, queue="root.alice").plan.share < 100


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (
            Size(memory_mib=999_999, vcores=1),
            "Container's --memory-mib must be at most 16384 MiB, the most that one has on a100; got 999999. Lower",
        ),
        (Size(memory_mib=1, vcores=999), "Container's --vcores must be at most 4 vcores, .* got 999. Lower --vcores."),
    ],
)
def test_a_container_that_no_node_can_hold_is_refused(size: Size, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        require_ready(VIEW, Wanted(share=SHARE, label="a100", size=size))


def test_a_label_on_which_nothing_binds_containers_is_left_out() -> None:
    told = {node.name: JmxReport(name=node.name, classes=LISTENER) for node in VIEW.nodes}
    assert require_listeners(VIEW, ("a100", "v100"), told) == (VIEW, [])
    bare = {**told, **{node.name: JmxReport(name=node.name) for node in VIEW.of_label("v100")}}
    left, notes = require_listeners(VIEW, ("a100", "v100"), bare)
    assert left.of_label("v100") == ()
    assert notes == ["v100 is left out, for nothing binds containers to GPUs there"]
    with pytest.raises(RequestError, match=r"^Nodes with the label v100 must run gpusage's listener"):
        require_listeners(VIEW, ("v100",), bare)
    _, notes = require_listeners(VIEW, ("v100",), {})
    assert notes == ["no node with the label v100 has told whether it binds containers to GPUs"]


def test_without_a_model_a_whole_gpu_is_asked_for(advisor: Advisor) -> None:
    made = proposed(advisor, None)
    assert (made.plan.share, made.plan.memory_cap_mib) == (100, 0)
    assert made.line() == "gpusage.io/share: 100 on a100, then h100, then v100 | the job says nothing to gpusage"


def test_a_small_model_that_keeps_its_gpu_takes_an_old_one(advisor: Advisor) -> None:
    model = str(ROOT / "examples/models/mobilenet_v3_large.onnx")
    wish = ModelRequest(model=model, workload=Workload(batch_size=8, mode="infer"))
    made = proposed(advisor, advisor.read(model), wish=wish)
    assert made.verdict.decision.code is Code.KEEP
    assert made.plan.labels == ("v100", "a100", "h100")
    assert made.line().startswith("gpusage.io/share: 100 on v100, then a100, then h100: a whole GPU kept | ")


def test_a_model_that_is_much_slower_on_an_old_gpu_keeps_a_fast_one(advisor: Advisor) -> None:
    model = str(ROOT / "examples/models/vgg16.onnx")
    wish = ModelRequest(model=model, workload=Workload(batch_size=48, precision="fp16"))  # fits a V100
    assert proposed(advisor, advisor.read(model), wish=wish).plan.labels[-1] == "v100"


def test_a_named_gpu_is_the_only_one(advisor: Advisor, graph: ModelGraph) -> None:
    made = proposed(advisor, graph, label="h100")
    assert made.plan.labels == ("h100",)
    assert made.plan.fallback_after_s == 0


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_a_mode_that_the_site_has_set_is_kept_to(advisor: Advisor, graph: ModelGraph, mode: Any) -> None:  # noqa: ANN401
    made = proposed(advisor, graph, configuration=Configuration(mode=mode, origins={"mode": "file"}))
    assert (made.plan.share, made.plan.memory_cap_mib) == (100, 0)
    assert made.line().startswith(f"advice only in mode {mode}: yarn.io/gpu: 1 -> {SHARE}")


def test_the_kill_switch_gives_whole_gpus(advisor: Advisor, graph: ModelGraph, tmp_path: Path) -> None:
    (tmp_path / "off").touch()
    made = proposed(advisor, graph, configuration=Configuration(kill_switch=str(tmp_path / "off")))
    assert made.plan.share == 100
    assert "kill switch" in made.line()


def test_whatever_was_decided_no_gpu_is_asked_for_that_is_too_small(advisor: Advisor, tmp_path: Path) -> None:
    (tmp_path / "off").touch()
    model = str(ROOT / "examples/models/vgg16.onnx")
    wish = ModelRequest(model=model, workload=Workload(batch_size=96))
    settings = ({"kill_switch": str(tmp_path / "off")}, {"mode": "observe", "origins": {"mode": "file"}}, {})
    for each in settings:
        made = proposed(advisor, advisor.read(model), configuration=Configuration(**each), wish=wish)  # type: ignore[arg-type]
        assert sorted(made.plan.labels) == ["a100", "h100"]


def test_a_decision_is_kept(advisor: Advisor, graph: ModelGraph, tmp_path: Path) -> None:
    configuration = Configuration(store=StoreSettings(url=f"sqlite:///{tmp_path}/d.db"))
    made = proposed(advisor, graph)
    number, trouble = record(made, advisor, configuration.store.url)
    store = open_store(configuration.store.url)
    (kept,) = store.latest(5)
    assert (number, trouble) == (kept.number, "")
    assert store.find(kept.number) == kept
    store.close()
    assert int(kept.number, 16) >> 16 == int(kept.decided_at_s)  # as gpusaged numbers its own
    assert (kept.manager, kept.origin, kept.model, kept.rendered.after) == (
        "yarn",
        "alice",
        MODEL,
        made.verdict.rendered.after,
    )


def test_a_store_that_cannot_be_written_costs_no_job(advisor: Advisor, graph: ModelGraph) -> None:
    configuration = Configuration(store=StoreSettings(url="sqlite:////proc/none/d.db"))
    number, trouble = record(proposed(advisor, graph), advisor, configuration.store.url)
    assert (number, bool(trouble)) == ("", True)


@pytest.mark.parametrize(
    ("view", "queue", "label", "sentence"),
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
def test_what_the_cluster_cannot_run_is_told_in_one_sentence(view: View, queue: str, label: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        require_ready(view, Wanted(share=SHARE, queue=queue, label=label, size=SIZE))


def test_what_the_cluster_can_run_is_let_through() -> None:
    wanted = Wanted(share=SHARE, queue="root.default", label="a100", size=SIZE)
    assert require_ready(VIEW, wanted) == ("a100",)


def test_nodes_that_have_not_registered_yet_are_waited_for() -> None:
    views = iter([replace(VIEW, nodes=()), replace(VIEW, nodes=VIEW.nodes[:1]), VIEW])
    missing = next(node.label for node in VIEW.nodes[1:])
    assert settled_view(lambda: next(views), SHARE, missing) is VIEW
