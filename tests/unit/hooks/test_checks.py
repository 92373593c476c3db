"""The checks themselves: each breach of the contract is found and said in one sentence."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpusage_hooks import checks, hookimpl, samples
from gpusage_hooks.conformance import mismatch
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import (
    Code,
    Colocation,
    Decision,
    Figure,
    Gpu,
    GpuNeed,
    GpuReading,
    GpuRequest,
    Interval,
    ModelGraph,
    ObservedFigures,
    PolicyInput,
    Workload,
)


def plugin(**functions: Callable[..., Any]) -> types.ModuleType:
    module = types.ModuleType("site")
    for name, function in functions.items():
        setattr(module, name, hookimpl(function))
    return module


def sound_needs(workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]) -> list[GpuNeed]:
    return [need_on(workload, gpu, of_gpu) for gpu, of_gpu in zip(gpus, known, strict=True)]


def need_on(workload: Workload, gpu: Gpu, known: ObservedFigures) -> GpuNeed:
    step_time_s = known.step_time_s.interval if known.step_time_s else samples.around(1e11 / gpu.bandwidth_bytes_per_s)
    memory = known.memory_bytes.interval if known.memory_bytes else samples.around(1e9)
    need = replace(samples.need(gpu), step_time_s=step_time_s, memory_bytes=memory, fits=True)
    if known.gpu_utilization:
        need = replace(need, gpu_utilization=known.gpu_utilization.interval)
    return replace(need, throughput_samples_per_s=samples.around(workload.batch_size / step_time_s.value))


def keep_request(policy_input: PolicyInput, draft: Decision) -> Decision:
    return replace(draft, request=policy_input.request, reasons=("as asked",), final=True)


def changing(**changes: Any) -> Callable[..., Decision]:  # fields of GpuRequest
    def decide(policy_input: PolicyInput, draft: Decision) -> Decision:
        return replace(draft, request=replace(policy_input.request, **changes), reasons=("so it is",))

    return decide


def test_a_sound_plugin_passes_and_its_hooks_are_named() -> None:
    site = plugin(predict_needs=sound_needs, decide=keep_request, read_model=lambda source: None)
    assert checks.check_plugin(site) == ("decide", "predict_needs", "read_model")


def test_a_reader_is_checked_on_the_models_that_its_author_names() -> None:
    def read_model(source: str) -> ModelGraph | None:
        if source.endswith("broken.mine"):
            raise GraphError("Model must not be broken; got one that is. Fix it.")
        return samples.graph() if source.endswith(".mine") else None

    checks.check_reader(read_model, sources=["a.mine"], broken=["broken.mine"])
    with pytest.raises(AssertionError, match=r"must read 'a.other'; got None"):
        checks.check_reader(read_model, sources=["a.other"])
    with pytest.raises(AssertionError, match=r"must refuse 'a.mine' with a GraphError"):
        checks.check_reader(read_model, broken=["a.mine"])


def raising(policy_input: PolicyInput) -> None:
    raise KeyError(policy_input.cluster.version)


def changing_its_mind() -> Callable[[str], Decision | None]:
    answers: Iterator[Decision | None] = iter(
        [keep_request(samples.policy_input(), samples.draft(samples.policy_input())), None] * 100
    )
    return lambda policy_input, draft: next(answers)  # type: ignore[misc,return-value]


def vandal(policy_input: PolicyInput, draft: Decision) -> Decision:
    object.__setattr__(draft, "reasons", ("mine now",))
    return keep_request(policy_input, draft)


def sorted_by_name(workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]) -> list[GpuNeed]:
    return sound_needs(workload, sorted(gpus, key=lambda gpu: gpu.name), known)


def needs_with(**change: object) -> Callable[..., list[GpuNeed]]:
    def predict(workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]) -> list[GpuNeed]:
        return [replace(need, **change) for need in sound_needs(workload, gpus, known)]  # type: ignore[arg-type]

    return predict


def relative(workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]) -> list[GpuNeed]:
    needs = sound_needs(workload, gpus, known)
    part = samples.around(0.5 / len(needs))
    return [replace(need, sm_activity=part) for need in needs]


def unaware(workload: Workload, gpus: Sequence[Gpu], known: Sequence[ObservedFigures]) -> list[GpuNeed]:
    return sound_needs(workload, gpus, [ObservedFigures()] * len(known))


TURNED = Interval(value=1.0, low=2.0, high=0.5)
ENDLESS = Interval(value=1.0, low=0.5, high=float("inf"))


def rumours(gpus: Sequence[Gpu]) -> list[ObservedFigures]:
    return [ObservedFigures(step_time_s=Figure(interval=samples.around(1.0), source=" "))] * len(gpus)


def without_sources() -> list[Gpu]:
    return [replace(gpu, source=" ") for gpu in samples.gpus()]


def twice() -> list[Gpu]:
    return [*samples.gpus(), *samples.gpus()]


def one_for_all(needs: Sequence[object], gpu: Gpu) -> Colocation:
    del needs
    return Colocation(
        gpu=gpu.name,
        normalised_throughput=(samples.around(0.5),),
        mps_thread_percent=(50,),
        memory_cap_bytes=(1,),
        throughput_sum=samples.around(0.5),
        fits=True,
        recommended=True,
    )


BREACHES: Mapping[str, tuple[str, Callable[..., Any], str]] = {
    "another error": ("decide", raising, "raise nothing but GpuUsageError; it raised KeyError"),
    "not pure": ("decide", changing_its_mind(), "must answer the same question alike"),
    "mutates": ("decide", vandal, "must leave its arguments as they are"),
    "wrong type": ("decide", lambda policy_input: {"code": "KEEP"}, "must be Decision or None; got dict"),
    "list for tuple": (
        "decide",
        changing(preferred_gpus=["sample-old"]),
        "preferred_gpus must be a tuple",
    ),
    "two GPUs": ("decide", changing(gpu_count=9), "no more GPUs than asked for"),
    "type dropped": ("decide", changing(gpu_type=None), "a named GPU type must be kept"),
    "stray preference": ("decide", changing(preferred_gpus=("b200",)), "must be in the cluster"),
    "huge share": ("decide", changing(mps_thread_percent=101, gpu_count=0), "1 to 100 percent"),
    "share beside GPU": ("decide", changing(mps_thread_percent=50), "must replace the whole GPU"),
    "fewer threads": (
        "decide",
        changing(mps_thread_percent=50, gpu_count=0, thread_cap_percent=40),
        "must be from its percentage to 100",
    ),
    "no reason": ("decide", lambda draft: replace(draft, final=True), "must have reasons"),
    "too few": ("predict_needs", lambda gpus: [samples.need(gpus[0])], "one entry per GPU; got 1 for 3"),
    "own order": ("predict_needs", sorted_by_name, "must name its GPU"),
    "turned ends": ("predict_needs", needs_with(step_time_s=TURNED), "must be ordered low, value, high"),
    "infinite": ("predict_needs", needs_with(memory_bytes=ENDLESS), "must be finite"),
    "relative": ("predict_needs", relative, "must not depend on which other GPUs"),
    "unaware": ("predict_needs", unaware, "must take the gpu_utilization that is known"),
    "old throughput": (
        "predict_needs",
        needs_with(throughput_samples_per_s=samples.around(7.0)),
        "must follow from the step time",
    ),
    "too large": ("predict_needs", needs_with(fits=False), "fits must follow from the required memory's high end"),
    "intervals for needs": (
        "predict_needs",
        lambda: [samples.around(1.0)] * 3,
        "must be of type GpuNeed; got Interval",
    ),
    "a rumour": ("find_observed_figures", rumours, "step_time_s must name its source"),
    "a name for any file": ("describe_model_names", lambda: ["*"], "must have one"),
    "a star in the middle": ("describe_model_names", lambda: ["a*.acme"], "must have one"),
    "no source": ("describe_gpus", without_sources, "must have a source"),
    "named twice": ("describe_gpus", twice, "must name each GPU once"),
    "one entry for all": ("predict_colocation", one_for_all, "one entry per job"),
    "answers everyone": ("read_model", lambda source: samples.graph(), "must answer None to"),
    "renders everyone": ("parse_submission", lambda submission: samples.job(), "leave manager"),
    "reads every cluster": ("read_cluster", lambda path: samples.policy_input().cluster, "to others"),
    "reads all jobs": ("read_past_jobs", lambda path: [], "to others"),
    "asks every accounting": ("collect_past_jobs", lambda manager: [], "to others"),
    "observes everyone": ("observe_cluster", lambda manager: samples.policy_input().cluster, "to others"),
    "collects everyone": ("collect_usage", lambda manager: [], "to others"),
    "accounts for everyone": ("read_accounting", lambda manager: [], "to others"),
    "reads every GPU": ("read_gpu", lambda device: GpuReading(name=device), "a GPU that is not there"),
    "nameless command": ("add_commands", lambda: [object()], "must give click commands"),
    "talks back": ("decision_made", lambda record: record, "must be None"),
    "counts on what may be unknown": (
        "usage_observed",
        lambda usage: usage.cpu_s / 1 and None,
        "must raise nothing but",
    ),
}


@pytest.mark.parametrize(("hook", "function", "sentence"), BREACHES.values(), ids=BREACHES)
def test_a_breach_is_found_and_said(hook: str, function: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        checks.check_plugin(plugin(**{hook: function}))


def test_a_hook_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError, match="got no hook 'decide_fitt'"):
        checks.check_plugin(plugin(decide_fitt=keep_request))


def test_an_argument_that_the_hook_does_not_have_is_found() -> None:
    with pytest.raises(AssertionError, match=r"got \['queue'\]"):
        checks.check_plugin(plugin(decide=lambda policy_input, queue: None))


def test_a_hook_may_be_named_by_its_mark() -> None:
    site = types.ModuleType("site")
    site.mine = hookimpl(specname="decide")(keep_request)  # type: ignore[attr-defined]
    assert checks.check_plugin(site) == ("decide",)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"producers": ()}, "one entry per node"),
        ({"producers": ((-1,), (2,), (1,), (2, 1), (3,), (4,), (5,))}, "earlier nodes only"),
        ({"producers": ((-2,), (0,), (1,), (2, 1), (3,), (4,), (5,))}, "model inputs or"),
        ({"nodes": (), "producers": ()}, "must have nodes"),
        ({"parameter_count": -1}, "0 or more"),
        ({"nodes": [*samples.graph().nodes]}, "the graph.nodes must be a tuple"),
    ],
)
def test_an_unsound_graph_is_found(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        checks.check_graph(replace(samples.graph(), **change))


def test_a_final_keep_may_not_change_the_request() -> None:
    policy_input = samples.policy_input()
    draft = samples.draft(policy_input)
    changed = replace(draft, code=Code.KEEP, final=True, reasons=("r",), request=GpuRequest(gpu_count=0))
    with pytest.raises(AssertionError, match="final KEEP must leave the request"):
        checks.check_decision(changed, policy_input, draft)


@pytest.mark.parametrize(
    ("value", "hint", "clause"),
    [
        (1, float, None),
        (True, float, "x must be of type float; got bool True"),
        ((1, 2), tuple[int, ...], None),
        ((1, "2"), tuple[int, ...], "x[1] must be of type int; got str '2'"),
        ((1,), tuple[int, int], "x must have 2 entries; got 1"),
        ({"a": 1}, Mapping[str, int], None),
        ({"a": "b"}, Mapping[str, int], "x['a'] must be of type int; got str 'b'"),
        ({1: 1}, Mapping[str, int], "a key of x must be of type str; got int 1"),
        ([1], Mapping[str, int], "x must be a mapping; got list [1]"),
        ("ab", Sequence[str], "x must be a sequence; got str 'ab'"),
        (None, int | None, None),
        ("a", int | None, "x must be int or None; got str 'a'"),
        (
            replace(Interval(value=1, low=1, high=1), low="a"),
            Interval | None,
            "x.low must be of type float; got str 'a'",
        ),  # type: ignore[arg-type]
    ],
)
def test_a_type_is_judged_all_the_way_down(value: object, hint: object, clause: str | None) -> None:
    assert mismatch(value, hint, "x") == clause
