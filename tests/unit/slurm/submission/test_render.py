"""A decision in Slurm's words."""

from __future__ import annotations

import dataclasses

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.managers import Context
from gpusage_hooks.types import Cluster, Code, Decision, DecisionRequest, GpuPool, Job, NodeKind, RenderedDecision
from gpusage_hooks.units import GIB
from gpusage_slurm import plugin
from gpusage_slurm.jobs.placement import constraint_without_types
from gpusage_slurm.settings import SlurmSettings
from gpusage_slurm.submission.render import mps_units, preference_expression, render_decision
from gpusage_slurm.submission.request import parse_submission

CONTEXT = Context(settings=SlurmSettings(), catalogue=builtin_catalogue())
POOLS = (
    GpuPool(
        gpu="v100-sxm2-16gb",
        site_type="v100",
        gpu_count=8,
        free_gpu_count=3,
        mps_per_gpu=100,
        feature="v100",
        exact_feature="v100",
    ),
    GpuPool(gpu="h100-sxm5-80gb", site_type="h100", gpu_count=4, free_gpu_count=0, mps_per_gpu=100, feature="hopper"),
)
ODD = GpuPool(gpu=None, site_type="odd", gpu_count=1, free_gpu_count=1)


def job_of(**fields: str) -> Job:
    job = parse_submission(DecisionRequest(manager="slurm", fields=fields or {"tres_per_node": "gres:gpu:1"}))
    assert job is not None
    return job


def rendered(
    job: Job, *, pools: tuple[GpuPool, ...] = POOLS, code: Code = Code.REWRITE, **changes: object
) -> RenderedDecision:
    request = dataclasses.replace(job.request, **changes)  # type: ignore[arg-type]
    decision = Decision(code=code, request=request, reasons=(), plugin="test")
    rendered_job = render_decision(job, decision, Cluster(manager="slurm", version="22.05", pools=pools))
    assert rendered_job is not None
    return rendered_job


def test_a_share_replaces_the_gpu_and_carries_its_cap() -> None:
    rendered_job = rendered(job_of(), mps_thread_percent=40, memory_cap_bytes=6 * GIB, preferred_gpus=("v100",))
    assert rendered_job == RenderedDecision(
        before="gres/gpu:1",
        after="gres/mps:40, prefer v100",
        fields={
            "set.gres": "mps:40",
            "set.prefer": "v100",
            "env.GPUSAGE_DECISION": "mps:40",
            "env.CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6144M",  # 6 x 1024 MiB
            "env.CUDA_MPS_CLIENT_PRIORITY": "1",
        },
    )


def test_a_job_with_a_latency_limit_goes_before_those_beside_it() -> None:
    urgent = job_of(tres_per_node="gres:gpu:1", comment="model=r.onnx,mode=infer,slo=50ms")
    assert rendered(urgent, mps_thread_percent=40).fields["env.CUDA_MPS_CLIENT_PRIORITY"] == "0"


def test_a_slice_is_asked_for_by_its_type_and_nothing_else_is_set() -> None:
    job = job_of(tres_per_node="gres:nvme:1", tres_per_job="gres/gpu:1")
    pools = (*POOLS, GpuPool(gpu="a100-sxm4-40gb:3g.20gb", site_type="3g.20gb", gpu_count=2, free_gpu_count=1))
    rendered_job = rendered(job, pools=pools, slice_type="3g.20gb")
    assert rendered_job.after == "gres/gpu:3g.20gb:1"
    held = {"set.gres": "gpu:3g.20gb:1,gres:nvme:1", "set.tres_per_job": ""}
    assert rendered_job.fields == held
    slices = {"slice_type": "3g.20gb", "preferred_gpus": ("h100", "v100")}
    larger = rendered(job, pools=pools, memory_cap_bytes=20, repeatable=False, **slices)
    assert larger.after == "gres/gpu:3g.20gb:1, else h100"
    assert larger.fields == {**held, "env.GPUSAGE_DECISION": "gpu:3g.20gb:1", "env.GPUSAGE_RESCUE": "no"}


def test_a_job_that_may_use_more_threads_than_its_share_carries_how_many() -> None:
    fields = rendered(job_of(), mps_thread_percent=40, thread_cap_percent=80).fields
    assert (fields["set.gres"], fields["env.GPUSAGE_THREAD_PERCENT"]) == ("mps:40", "80")


@pytest.mark.parametrize("place", ["tres_per_job", "tres_per_socket", "tres_per_task"])
def test_the_other_places_are_emptied(place: str) -> None:
    fields = rendered(job_of(**{place: "gres/gpu:1"}), mps_thread_percent=40).fields
    assert fields["set.gres"] == "mps:40"
    assert fields[f"set.{place}"] == ""


def test_what_stands_beside_the_gpu_stays_where_it_is() -> None:
    job = job_of(tres_per_node="gres:nvme:1", tres_per_task="cpu=4,gres/gpu=1", tres_bind="gres/gpu:per_task:1")
    fields = rendered(job, mps_thread_percent=25).fields
    assert fields["set.gres"] == "mps:25,gres:nvme:1"
    assert fields["set.tres_per_task"] == "cpu=4"
    assert fields["set.tres_bind"] == ""
    assert "set.tres_per_job" not in fields


@pytest.mark.parametrize(
    ("percent", "units", "expected"),
    [(40, 100, 40), (33, 200, 66), (33, 10, 4), (1, 10, 1), (100, 48, 48)],  # ceil(percent x units / 100)
)
def test_a_percentage_becomes_the_sites_own_units(percent: int, units: int, expected: int) -> None:
    assert mps_units(percent, (dataclasses.replace(POOLS[0], mps_per_gpu=units),), ()) == expected


def test_where_pools_count_differently_no_pool_gives_less_than_was_decided() -> None:
    pools = (POOLS[0], dataclasses.replace(POOLS[1], mps_per_gpu=200))
    assert mps_units(40, pools, ()) == 80
    assert mps_units(40, pools, ("v100",)) == 40
    assert mps_units(60, pools, ()) is None  # 120 units are more than a V100 has


def test_a_part_that_rounds_up_to_all_of_a_gpus_units_is_no_share() -> None:
    coarse = (dataclasses.replace(POOLS[0], mps_per_gpu=3),)
    assert mps_units(50, coarse, ()) == 2
    assert mps_units(80, coarse, ()) is None
    assert mps_units(100, coarse, ()) == 3


def test_a_pool_that_cannot_be_shared_keeps_the_gpu_whole_unless_the_job_avoids_it() -> None:
    assert mps_units(40, (*POOLS, ODD), ()) is None
    assert mps_units(40, (*POOLS, ODD), ("v100",)) == 40
    assert mps_units(40, (*POOLS, dataclasses.replace(ODD, gpu_count=0)), ()) == 40


TYPED = "gres:gpu:v100:1"


@pytest.mark.parametrize(
    ("constraint", "held"),
    [
        ("", "v100"),
        ("intel", "v100&intel"),
        ("intel&ib", "v100&intel&ib"),
        ("intel|amd", "v100&(intel|amd)"),
    ],
)
def test_the_type_that_the_user_named_is_held_by_its_feature_never_by_the_share(constraint: str, held: str) -> None:
    job = job_of(tres_per_node=TYPED, features=constraint)
    rendered_job = rendered(job, mps_thread_percent=40, preferred_gpus=("h100",))
    assert rendered_job.after == f"gres/mps:40, constraint {held}"
    assert rendered_job.fields["set.gres"] == rendered_job.fields["env.GPUSAGE_DECISION"] == "mps:40"
    assert rendered_job.fields["set.features"] == held
    assert "set.prefer" not in rendered_job.fields


def test_a_constraint_that_holds_the_type_already_stays_as_it_is() -> None:
    rendered_job = rendered(job_of(tres_per_node=TYPED, features="intel&v100"), mps_thread_percent=40)
    assert rendered_job.after == "gres/mps:40, constraint intel&v100"
    assert "set.features" not in rendered_job.fields


@pytest.mark.parametrize(
    ("fields", "trouble"),
    [
        ({"tres_per_node": "gres:gpu:h100:1"}, "no feature is on all of its nodes and on no others"),
        ({"tres_per_node": TYPED, "prefer": "intel"}, "--prefer would stand in place of its feature v100"),
        ({"tres_per_node": TYPED, "features": "[rack1|rack2]"}, "cannot be joined to --constraint=[rack1|rack2]"),
        ({"tres_per_node": TYPED, "features": "a&b|c"}, "cannot be joined"),
        ({"tres_per_node": TYPED, "features": "x" * 1020}, "cannot be joined"),
    ],
)
def test_where_no_feature_can_hold_the_type_the_gpu_stays_whole(fields: dict[str, str], trouble: str) -> None:
    rendered_job = rendered(job_of(**fields), mps_thread_percent=40)
    assert (rendered_job.fields, rendered_job.after) == ({}, rendered_job.before)
    assert trouble in (rendered_job.trouble or "")


BOTH = (POOLS[0], dataclasses.replace(POOLS[1], exact_feature="hopper"), dataclasses.replace(ODD, mps_per_gpu=100))


@pytest.mark.parametrize(
    ("types", "constraint", "share", "held"),
    [
        (("h100",), "", "mps:50", "hopper"),
        (("h100", "v100"), "", "mps:50", "hopper|v100"),
        (("v100",), "ib", "mps:50", "v100&ib"),
        (("h100", "v100"), "ib|opa", "mps:50", "(hopper|v100)&(ib|opa)"),
    ],
)
def test_a_share_that_binds_is_a_constraint_and_its_units_are_those_types(
    types: tuple[str, ...], constraint: str, share: str, held: str
) -> None:
    job = job_of(tres_per_node="gres:gpu:1", features=constraint)
    rendered_job = rendered(job, pools=BOTH, mps_thread_percent=50, required_gpus=types)
    assert rendered_job.after == f"gres/{share}, constraint {held}"
    assert (rendered_job.fields["set.gres"], rendered_job.fields["set.features"]) == (share, held)
    assert constraint_without_types(held) == constraint


@pytest.mark.parametrize(
    ("fields", "types"),
    [({"features": "[ib|opa]"}, ("h100",)), ({"prefer": "v100"}, ("h100",)), ({}, ("odd",)), ({}, ("h100", "odd"))],
)
def test_a_job_that_cannot_be_bound_keeps_its_gpu(fields: dict[str, str], types: tuple[str, ...]) -> None:
    job = job_of(tres_per_node="gres:gpu:1", **fields)
    rendered_job = rendered(job, pools=BOTH, mps_thread_percent=50, required_gpus=types)
    assert not rendered_job.fields
    assert (rendered_job.trouble or "").startswith(f"it is decided for {', '.join(types)} only, to which this job")


@pytest.mark.parametrize("request_type", ["", "v100"])
def test_a_share_needs_no_feature_where_only_its_types_can_be_shared(request_type: str) -> None:
    """gres/mps starts only where it is, and an H100 without it gets none."""
    gpus = f"gres:gpu:{request_type}:1" if request_type else "gres:gpu:1"
    unshared = dataclasses.replace(POOLS[1], mps_per_gpu=None, node_kinds=(NodeKind(has_shares=False),))
    alone = dataclasses.replace(POOLS[0], exact_feature=None)
    wanted = {"gpu_type": request_type} if request_type else {"required_gpus": ("v100",)}
    rendered_job = rendered(job_of(tres_per_node=gpus), pools=(alone, unshared), mps_thread_percent=50, **wanted)
    assert (rendered_job.after, rendered_job.fields["set.gres"]) == ("gres/mps:50", "mps:50")
    assert "set.features" not in rendered_job.fields


def test_where_no_gpu_can_be_shared_nothing_changes() -> None:
    rendered_job = rendered(job_of(), pools=(ODD,), mps_thread_percent=40)
    assert rendered_job == RenderedDecision(before="gres/gpu:1", after="gres/gpu:1", fields={})


@pytest.mark.parametrize("code", [Code.KEEP, Code.DECLINE])
def test_a_request_that_is_kept_has_nothing_to_set(code: Code) -> None:
    assert rendered(job_of(), code=code, mps_thread_percent=40).fields == {}


def test_a_generation_alone_leaves_the_gpu_whole_and_unmarked() -> None:
    rendered_job = rendered(job_of(), preferred_gpus=("h100",))
    assert rendered_job.after == "gres/gpu:1, prefer hopper"
    assert set(rendered_job.fields) == {"set.prefer"}


@pytest.mark.parametrize(
    ("preferred", "constraint", "expression"),
    [
        (("h100",), "", "hopper"),
        (("h100", "v100"), "", "hopper|v100"),
        (("h100",), "intel", "hopper&intel"),
        (("h100", "v100"), "intel|amd", "(hopper|v100)&(intel|amd)"),
        (("odd", "h100"), "", "hopper"),  # the odd pool has no feature
        (("odd",), "", None),
        ((), "intel", None),
        (("h100",), "[rack1|rack2]", None),
        (("h100",), "intel*2", None),
        (("h100",), "intel&gold|amd", None),  # which of the two binds closer?
        (("h100",), "v100", None),  # the generation is named: preferring another would contradict it
        (("h100",), "intel&hopper", None),
        (("h100",), "\N{SNOWMAN}", None),
        (("h100",), "x" * 1024, None),
    ],
)
def test_prefer_repeats_the_jobs_own_constraint(
    preferred: tuple[str, ...], constraint: str, expression: str | None
) -> None:
    request = dataclasses.replace(job_of().request, preferred_gpus=preferred)
    assert preference_expression(request, (*POOLS, ODD), constraint) == expression


@pytest.mark.parametrize(
    "fields",
    [{"prefer": "v100"}, {"req_nodes": "n1"}, {"exc_nodes": "n1"}, {"tres_per_node": "gres:gpu:1,gres:nvme:1"}],
)
def test_there_is_no_preference_where_it_could_become_a_demand(fields: dict[str, str]) -> None:
    job = job_of(**{"tres_per_node": "gres:gpu:1", **fields})
    rendered_job = rendered(job, mps_thread_percent=40, preferred_gpus=("h100",)).fields
    assert "set.prefer" not in rendered_job
    assert rendered_job["set.gres"].startswith("mps:40")


@pytest.mark.parametrize(("own", "excluded"), [("", "n1,n2"), ("n7", "n7,n1,n2")])
def test_nodes_that_a_share_avoids_join_those_that_its_user_excludes(own: str, excluded: str) -> None:
    job = job_of(tres_per_node="gres:gpu:1", exc_nodes=own)
    avoided = (*job.request.avoided_nodes, "n1", "n2")
    rendered_job = rendered(job, mps_thread_percent=40, required_gpus=("v100",), avoided_nodes=avoided)
    assert rendered_job.fields["set.exc_nodes"] == excluded
    assert rendered_job.after == "gres/mps:40, avoid n1,n2, constraint v100"
    apart = rendered(job, mps_thread_percent=40, avoided_nodes=avoided, keeps_apart=True)
    assert apart.after == "gres/mps:40, apart n1,n2"  # for other users' jobs there
    assert "set.exc_nodes" not in rendered(job, mps_thread_percent=40).fields


def test_another_managers_job_is_not_ours() -> None:
    job = dataclasses.replace(job_of(), submission=DecisionRequest(manager="yarn"))
    decision = Decision(code=Code.REWRITE, request=job.request, reasons=(), plugin="test")
    cluster = Cluster(manager="yarn", version="3.4", pools=())
    assert plugin.render_decision(job, decision, cluster, CONTEXT) is None


def place(
    name: str,
    *features: str,
    count: int = 4,
    request: str | None = None,
    feature: str | None = None,
    named: bool = False,
) -> GpuPool:
    """Return a pool called *name*, of one node with *features*; its name is known if *named*."""
    names = (f"node-{name}",) if named else ()
    kind = NodeKind(features=features, cpu_count=8, gpu_count=count, node_names=names)
    return GpuPool(
        gpu=None,
        site_type=name,
        request_type=request,
        gpu_count=count,
        free_gpu_count=count,
        feature=feature,
        node_features=(features,),
        node_kinds=(kind,),
        node_names=kind.node_names,
    )


H100, SLICE = place("h100", "hopper", "ib", feature="hopper"), place("1g.10gb", "hopper", "mig")
A100, V100 = place("a100", "ampere", "nvlink", feature="ampere"), place("v100", "volta", "nvlink")


@pytest.mark.parametrize(
    ("pools", "required", "preferred", "after"),
    [
        # As few features as lead to all of the nodes; none that nodes too small have.
        ((H100, A100, V100, SLICE), ("h100", "a100", "v100"), (), "gres/gpu:1, constraint ib|nvlink"),
        ((H100, A100, V100, SLICE), ("h100", "a100"), ("a100",), "gres/gpu:1, constraint ampere|ib, prefer ampere"),
        ((H100, A100, SLICE), ("h100", "a100"), ("h100", "a100"), "gres/gpu:1, constraint ampere|ib"),
        # A type by its name where no feature leads there, or features lead to fewer GPUs.
        ((place("h100", "ib"), place("1g.10gb", "ib")), ("h100",), (), "gres/gpu:h100:1"),
        ((place("h100", count=8), place("a100", "x"), SLICE), ("h100", "a100"), (), "gres/gpu:h100:1, or a100"),
        ((place("h100", count=2), place("a100", "x"), SLICE), ("h100", "a100"), (), "gres/gpu:h100:1, or a100"),
        ((place("h100", request=""), place("a100", "x"), SLICE), ("h100", "a100"), (), "gres/gpu:1, constraint x"),
        # Two sizes have one name, and GPUs without a type have none.
        (
            (place("a100-80", "gpu80", request="a100"), place("a100-40", request="a100")),
            ("a100-80",),
            (),
            "gres/gpu:1, constraint gpu80",
        ),
        ((place("a100-80", request="a100"), place("a100-40", request="a100")), ("a100-80",), (), "gres/gpu:1"),
        ((place("a100", request=""), place("v100", request="")), ("a100",), (), "gres/gpu:1"),
    ],
)
def test_a_whole_gpu_is_held_to_types_by_features_or_by_a_name(
    pools: tuple[GpuPool, ...], required: tuple[str, ...], preferred: tuple[str, ...], after: str
) -> None:
    rendered_job = rendered(job_of(), pools=pools, required_gpus=required, preferred_gpus=preferred)
    assert rendered_job.after == after
    assert bool(rendered_job.trouble) == (after == rendered_job.before)
    if after.startswith("gres/gpu:h100"):
        assert rendered_job.fields == {"set.gres": "gpu:h100:1"}


def test_a_feature_of_one_node_does_not_stand_for_all_nodes_of_its_type() -> None:
    kinds = [
        NodeKind(features=each, cpu_count=8, gpu_count=count) for each, count in ((("x", "large"), 1), (("x",), 3))
    ]
    mixed = dataclasses.replace(
        place("h100"), node_kinds=(*kinds,), node_features=tuple(kind.features for kind in kinds)
    )
    assert rendered(job_of(), pools=(mixed, place("t4", "x")), required_gpus=("h100",)).after == "gres/gpu:h100:1"


BOARDS = (place("h100", request="gpu", named=True), place("a100", request="gpu", named=True, feature="ampere"))
SMALL = tuple(place(f"t4-{size}", request="gpu", named=True) for size in "ab")


def test_a_job_is_held_to_all_types_that_it_fits_on_by_the_nodes_of_the_others() -> None:
    """Where neither features nor a type's name lead to as many GPUs."""
    job = job_of(tres_per_node="gres:gpu:1", exc_nodes="broken")
    required = {"required_gpus": ("h100", "a100")}
    by_nodes = rendered(job, pools=(*BOARDS, *SMALL), **required)
    assert by_nodes.after == "gres/gpu:1, exclude node-t4-a,node-t4-b"
    assert by_nodes.fields == {"set.exc_nodes": "broken,node-t4-a,node-t4-b"}

    # On nodes that have small ones, too, another type's name leads to more of them.
    typed = tuple(dataclasses.replace(pool, request_type=pool.site_type) for pool in BOARDS)
    mixed = dataclasses.replace(SMALL[0], node_names=("node-h100", "node-a100"))
    assert rendered(job_of(), pools=(*typed, mixed), **required).after == "gres/gpu:h100:1, or a100"


def test_a_job_is_held_only_to_nodes_that_can_run_it_in_each_of_its_partitions() -> None:
    def at(pool: GpuPool, partition: str) -> GpuPool:
        return dataclasses.replace(
            pool,
            partitions=(partition,),
            node_kinds=tuple(dataclasses.replace(kind, partitions=(partition,)) for kind in pool.node_kinds),
        )

    pools = (at(place("h100"), "long"), at(place("a100"), "short"), place("t4"))
    both = job_of(tres_per_node="gres:gpu:1", partition="long,short")
    assert rendered(both, pools=pools, required_gpus=("h100", "a100")).after == "gres/gpu:1"
    short = job_of(tres_per_node="gres:gpu:1", partition="short")
    assert rendered(short, pools=pools, required_gpus=("h100", "a100")).after == "gres/gpu:a100:1"


def test_a_constraint_of_the_job_s_own_is_joined_and_its_preference_left() -> None:
    job = job_of(tres_per_node="gres:gpu:1", features="ib2&x")
    pools = (place("h100", "hopper", "ib2", "x"), place("1g.10gb", "mig", "ib2", "x"))
    assert rendered(job, pools=pools, required_gpus=("h100",)).fields == {"set.features": "hopper&ib2&x"}
    own = job_of(tres_per_node="gres:gpu:1", prefer="intel")
    assert rendered(own, pools=pools, required_gpus=("h100",)).fields == {"set.gres": "gpu:h100:1"}


def test_features_too_many_for_a_constraint_leave_the_job_s_own_and_its_type_is_named() -> None:
    """Each node had a feature of its own: the joined text was too long, and an empty constraint replaced the job's."""
    hosts = tuple((f"host-g{number:03}", "ib") for number in range(150))
    kinds = tuple(NodeKind(features=each, cpu_count=8, gpu_count=4) for each in hosts)
    many = dataclasses.replace(place("h100", count=600), node_features=hosts, node_kinds=kinds)
    job = job_of(tres_per_node="gres:gpu:1", features="ib")
    assert rendered(job, pools=(many, place("v100", "ib", "old")), required_gpus=("h100",)).fields == {
        "set.gres": "gpu:h100:1"
    }


def test_a_named_type_of_two_sizes_is_held_to_one_by_its_feature() -> None:
    pools = (place("a100-80", "gpu80", request="a100"), place("a100-40", request="a100"), place("t4", "gpu80"))
    job = job_of(tres_per_node="gres:gpu:a100:1")
    assert rendered(job, pools=pools, required_gpus=("a100-80",)).fields == {"set.features": "gpu80"}


def kind_of(*names: str, gpu_count: int) -> NodeKind:
    return NodeKind(cpu_count=64, host_memory_bytes=256 * GIB, gpu_count=gpu_count, node_names=names, features=("ib",))


def several(*kinds: NodeKind, name: str = "h100") -> GpuPool:
    count = sum(kind.gpu_count * len(kind.node_names) for kind in kinds)
    return dataclasses.replace(POOLS[1], site_type=name, feature=None, node_kinds=kinds, gpu_count=count)


@pytest.mark.parametrize(
    ("fields", "changes", "after"),
    [
        ({"tres_per_node": "gres:gpu:2"}, {"set.gres": "gres:gpu:h100:2"}, "gres/gpu:h100:2"),
        ({"tres_per_job": "gres/gpu:4"}, {"set.tres_per_job": "gres/gpu:h100:4"}, "gres/gpu:h100:4 per job"),
        (
            {"tres_per_task": "cpu=4,gres/gpu=1", "num_tasks": "2"},
            {"set.tres_per_task": "cpu=4,gres/gpu:h100:1"},
            "gres/gpu:h100:1 per task",
        ),
    ],
)
def test_several_gpus_get_a_type_where_they_stand(fields: dict[str, str], changes: dict[str, str], after: str) -> None:
    pools = (several(kind_of("n1", "n2", gpu_count=4)), several(kind_of("n1", "n2", gpu_count=2), name="1g.10gb"))
    held = rendered(job_of(**fields), pools=pools, required_gpus=("h100",))
    assert (held.fields, held.after) == (changes, after)


@pytest.mark.parametrize(
    ("fields", "is_held"),
    [
        ({"tres_per_node": "gres:gpu:4"}, True),
        ({"tres_per_node": "gres:gpu:8"}, False),  # on no node
        ({"tres_per_job": "gres:gpu:8"}, True),  # on two
        ({"tres_per_job": "gres:gpu:12"}, False),
        ({"tres_per_node": "gres:gpu:2", "min_nodes": "2", "max_nodes": "2"}, True),
        ({"tres_per_node": "gres:gpu:2", "min_nodes": "3", "max_nodes": "3"}, False),
        ({"tres_per_job": "gres:gpu:8", "cpus_per_tres": "gres:gpu:16"}, True),  # 64 cores on a node
        ({"tres_per_job": "gres:gpu:8", "cpus_per_tres": "gres:gpu:17"}, False),
        ({"tres_per_task": "gres/gpu:1", "num_tasks": "8", "cpus_per_task": "16", "min_cpus": "128"}, True),
        ({"tres_per_task": "gres/gpu:1", "num_tasks": "8", "cpus_per_task": "17", "min_cpus": "136"}, False),
        ({"tres_per_job": "gres:gpu:8", "cpus_per_task": "17"}, True),  # of one task
        ({"tres_per_job": "gres:gpu:8", "mem_per_tres": "gres:gpu:65536"}, True),  # 256 GiB on a node
        ({"tres_per_job": "gres:gpu:8", "mem_per_tres": "gres:gpu:65537"}, False),
    ],
)
def test_several_gpus_are_held_only_to_nodes_that_are_enough(fields: dict[str, str], is_held: bool) -> None:
    pools = (several(kind_of("n1", "n2", gpu_count=4)), several(kind_of("n3", gpu_count=8), name="t4"))
    held = rendered(job_of(**fields), pools=pools, required_gpus=("h100",))
    assert bool(held.fields) == is_held
    assert is_held or held.trouble == "it is decided for h100 only, to which this job cannot be bound"


@pytest.mark.parametrize(
    ("large", "fields"),
    [
        (("h100", "v100"), {}),  # a type's name would lose the other for good
        (("h100",), {"set.gres": "gres:gpu:h100:4"}),
    ],
)
def test_several_gpus_are_bound_by_a_name_only_where_they_lose_no_type(
    large: tuple[str, ...], fields: dict[str, str]
) -> None:
    pools = tuple(dataclasses.replace(POOLS[1], site_type=name, feature=None) for name in ("h100", "v100", "t4"))
    held = rendered(job_of(tres_per_node="gres:gpu:4"), pools=pools, required_gpus=large)
    assert held.fields == fields
    assert bool(held.trouble) != bool(fields)
    featured = [dataclasses.replace(pool, feature=pool.site_type, exact_feature=pool.site_type) for pool in pools]
    both = rendered(job_of(tres_per_node="gres:gpu:4"), pools=tuple(featured), required_gpus=large)
    assert both.fields == {"set.features": "|".join(large)}
    cut = (pools[0], dataclasses.replace(pools[1], gpu="h100-sxm5-80gb:3g.40gb"), pools[2])
    assert rendered(job_of(tres_per_node="gres:gpu:4"), pools=cut, required_gpus=large).fields["set.gres"]
