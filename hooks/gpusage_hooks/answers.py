"""The rules for an answer, whoever gives it: its type, all the way down, and the further promises of its hook.

gpusage checks with these what other people's plugins answer while they run; `gpusage_hooks.checks` does before.
Each function raises `AssertionError` with one sentence where an answer breaks the contract.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, product
from typing import Any, get_type_hints

from gpusage_hooks import specs
from gpusage_hooks.conformance import conforms, require
from gpusage_hooks.managers import manager_fault
from gpusage_hooks.types import (
    Code,
    Colocation,
    Decision,
    Gpu,
    GpuNeed,
    Interval,
    ModelGraph,
    ObservedFigures,
    PolicyInput,
    Workload,
)

Question = Mapping[str, Any]
_FIGURES = (("step_time_s", math.inf), ("gpu_utilization", 1.0), ("memory_bytes", math.inf))
"""The figures that may be observed, and the most that each may be."""


def check_answer(hook: str, question: Question, answer: object) -> None:
    """Check that *answer* is what *hook* may answer to *question*, its arguments by name."""
    conforms(answer, _returned(hook), f"the answer of {hook}")
    if answer is not None and hook in _MORE:
        _MORE[hook](question, answer)


def check_graph(graph: ModelGraph) -> None:
    """Check that *graph* is whole: nodes in an order in which they can run, shapes that are sizes."""
    conforms(graph, ModelGraph, "the graph")
    require(len(graph.nodes) > 0, "the graph must have nodes; got none")
    require(graph.parameter_count >= 0, f"parameter_count must be 0 or more; got {graph.parameter_count}")
    count = len(graph.producers)
    require(count == len(graph.nodes), f"producers must have one entry per node; got {count} for {len(graph.nodes)}")

    for index, (node, makers) in enumerate(zip(graph.nodes, graph.producers, strict=True)):
        where = f"node {index} ({node.op_type})"
        require(len(makers) == len(node.inputs), f"{where} must have one producer an input; got {makers}")
        early = all(-len(graph.inputs) <= maker < index for maker in makers)
        require(early, f"{where} must read model inputs or earlier nodes only; got producers {makers}")
        fixed = all(size >= 0 for shape in node.parameters for size in shape)
        require(fixed, f"{where} must have weights that do not follow the batch; got {node.parameters}")
        names = [name for name, _ in node.attributes]
        require(names == sorted(names), f"{where} must have its attributes sorted by name; got {names}")


def check_gpu(row: Gpu) -> None:
    """Check a row of the catalogue: a name in lower case, figures above 0, a source."""
    require(row.name == row.name.strip().lower() != "", f"a GPU's name must be lower-case; got {row.name!r}")
    require(bool(row.source.strip()), f"GPU {row.name!r} must have a source; got none")
    require("fp32" in row.peak_flop_per_s, f"GPU {row.name!r} must have a peak for fp32; got none")

    # What divides by a figure, or takes its logarithm, must not fail on a site's own row.
    figures = chain(
        row.peak_flop_per_s.values(),
        (row.sm_count, row.clock_hz, row.memory_bytes, row.bandwidth_bytes_per_s, row.l2_bytes, row.power_limit_w),
    )
    require(
        all(math.isfinite(figure) and figure > 0 for figure in figures),
        f"GPU {row.name!r} must have finite figures above 0; got {row!r}",
    )


def check_interval(interval: Interval, name: str, *, least: float, most: float = math.inf) -> None:
    """Check that *interval* is finite, ordered, and within *least* and *most*."""
    conforms(interval, Interval, name)
    ends = (interval.low, interval.value, interval.high)
    require(all(math.isfinite(end) for end in ends), f"{name} must be finite; got {ends}")
    require(ends[0] <= ends[1] <= ends[2], f"{name} must be ordered low, value, high; got {ends}")
    require(least <= ends[0] and ends[2] <= most, f"{name} must lie from {least} to {most}; got {ends}")


def check_decision(decision: Decision, policy_input: PolicyInput, draft: Decision) -> None:
    """Check that *decision*, made on *draft*, takes nothing that the user did not ask for and says why."""
    original, wanted = policy_input.request, decision.request
    require(bool(decision.plugin), "a decision must name its plugin; got ''")
    if decision.final or wanted != draft.request:
        explained = bool(decision.reasons) and all(reason.strip() for reason in decision.reasons)
        require(explained, f"a decision that changes or ends something must have reasons; got {decision.reasons}")
    if decision.code is not Code.REWRITE and decision.final:
        require(wanted == original, f"a final {decision.code.name} must leave the request as it is; got {wanted}")

    # GPUs: no more and no others than the user named, and none that the cluster lacks.
    require(original.gpu_type in (None, wanted.gpu_type), f"a named GPU type must be kept; got {wanted.gpu_type!r}")
    require(wanted.gpu_count <= original.gpu_count, f"no more GPUs than asked for may be given; got {wanted.gpu_count}")
    known = {pool.site_type for pool in policy_input.cluster.pools}
    stray = [name for name in (*wanted.preferred_gpus, *wanted.bound_types) if name not in known]
    require(not stray, f"preferred and required GPUs must be in the cluster; got {stray}")

    # A share or a slice takes the place of the whole GPU, and neither stands beside the other.
    share, threads, cap_bytes = wanted.mps_thread_percent, wanted.thread_cap_percent, wanted.memory_cap_bytes
    is_one_slice = wanted.slice_type is None or (share is None and not wanted.required_gpus)
    require(is_one_slice, f"a slice must have no share and no required GPUs beside it; got {wanted}")
    require(share is None or 1 <= share <= 100, f"a share must be 1 to 100 percent; got {share}")
    require(share is None or wanted.gpu_count == 0, f"a share must replace the whole GPU; got {wanted.gpu_count} too")
    sound = threads is None or (share is not None and share <= threads <= 100)
    require(sound, f"a share's threads must be from its percentage to 100; got {threads} for {share}")
    require(cap_bytes is None or cap_bytes > 0, f"a memory cap must be above 0 bytes; got {cap_bytes}")


def _check_rows(question: Question, rows: Sequence[Gpu]) -> None:
    del question
    names = [row.name for row in rows]
    require(len(names) == len(set(names)), f"describe_gpus must name each GPU once; got {sorted(names)}")
    for row in rows:
        check_gpu(row)


def check_need(need: GpuNeed, workload: Workload, gpu: Gpu) -> None:
    """Check that *need* is of *gpu*, that its intervals are sound, and that all derived figures agree with them."""
    require(need.gpu == gpu.name, f"a need must name its GPU, {gpu.name!r}; got {need.gpu!r}")
    for name in ("step_time_s", "memory_bytes", "throughput_samples_per_s"):
        check_interval(getattr(need, name), name, least=math.ulp(0.0))
    check_interval(need.required_bytes, "required_memory_bytes", least=math.ulp(0.0))
    for name in ("gpu_utilization", "sm_activity", "dram_activity"):
        check_interval(getattr(need, name), name, least=0.0, most=1.0)

    # Policies read these without computing them again.
    expected = workload.batch_size / need.step_time_s.value
    throughput = need.throughput_samples_per_s.value
    follows = math.isclose(expected, throughput, rel_tol=1e-6)
    require(follows, f"throughput_samples_per_s must follow from the step time, {expected:g}; got {throughput:g}")
    fits = need.required_bytes.high <= gpu.memory_bytes
    require(need.fits == fits, f"fits must follow from the required memory's high end, {fits}; got {need.fits}")


def _check_needs(question: Question, answer: Sequence[GpuNeed]) -> None:
    _check_count(answer, question["gpus"])
    for need, gpu in zip(answer, question["gpus"], strict=True):
        check_need(need, question["workload"], gpu)


def _check_observed_figures(question: Question, answer: Sequence[ObservedFigures]) -> None:
    _check_count(answer, question["gpus"])
    for known, (name, most) in product(answer, _FIGURES):
        figure = getattr(known, name)
        if figure is not None:
            check_interval(figure.interval, name, least=math.ulp(0.0), most=most)
            require(bool(figure.source.strip()), f"{name} must name its source; got ''")


def _check_count(answer: Sequence[object], gpus: Sequence[Gpu]) -> None:
    require(len(answer) == len(gpus), f"the answer must have one entry per GPU; got {len(answer)} for {len(gpus)}")


def _check_slowdowns(question: Question, answer: Sequence[Sequence[Interval]]) -> None:
    parts: Sequence[Sequence[Gpu]] = question["parts"]
    expected, counts = [len(of_gpu) for of_gpu in parts], [len(of_gpu) for of_gpu in answer]
    require(counts == expected, f"the answer must have one entry for each part; got {counts} for {expected}")

    for gpu, of_gpu, entries in zip(question["gpus"], parts, answer, strict=True):
        for part, entry in zip(of_gpu, entries, strict=True):
            check_interval(entry, "slowdown", least=1.0)
            sound = part != gpu or entry.low == entry.high == 1.0
            require(sound, f"slowdown must be exactly 1 on a whole GPU; got {entry}")


def _check_colocation(question: Question, answer: Colocation) -> None:
    count, gpu = len(question["needs"]), question["gpu"]
    rows = (answer.normalised_throughput, answer.mps_thread_percent, answer.memory_cap_bytes)
    require(answer.gpu == gpu.name, f"the answer must name GPU {gpu.name!r}; got {answer.gpu!r}")
    lengths = [len(row) for row in rows]
    require({*lengths} == {count}, f"the answer must have one entry per job; got {lengths} for {count}")

    for throughput in answer.normalised_throughput:
        check_interval(throughput, "normalised_throughput", least=0.0, most=1.0)
    check_interval(answer.throughput_sum, "throughput_sum", least=0.0, most=float(count))
    right = all(1 <= percent <= 100 for percent in answer.mps_thread_percent)  # percent
    require(right, f"mps_thread_percent must be 1 to 100; got {answer.mps_thread_percent}")


def _check_model_names(question: Question, answer: Sequence[str]) -> None:
    del question
    for name in answer:
        right = len(name) > 1 and name.count("*") == 1 and "*" in (name[0], name[-1]) and not set(name) & set("?[] ,;=")
        require(right, f"a model's name must have one '*', at the front or at the end, as '*.acme'; got {name!r:.80}")


def _check_commands(question: Question, answer: Sequence[object]) -> None:
    del question
    names = [getattr(command, "name", None) for command in answer]
    right = all(isinstance(name, str) and name for name in names) and len(names) == len(set(names))
    require(right, f"add_commands must give click commands, each with a name of its own; got {names}")


@cache  # as in gpusage_hooks.conformance
def _returned(hook: str) -> Any:  # any annotation
    return get_type_hints(getattr(specs, hook))["return"]


_MORE: Mapping[str, Callable[[Question, Any], None]] = {
    "read_model": lambda _, graph: check_graph(graph),
    "describe_model_names": _check_model_names,
    "describe_gpus": _check_rows,
    "find_observed_figures": _check_observed_figures,
    "predict_needs": _check_needs,
    "predict_slowdown": _check_slowdowns,
    "predict_colocation": _check_colocation,
    "decide": lambda question, decision: check_decision(decision, question["policy_input"], question["draft"]),
    "describe_manager": lambda _, manager: require(
        manager_fault(manager) is None, f"describe_manager must describe a manager: {manager_fault(manager)}"
    ),
    "add_commands": _check_commands,
}
"""What each hook promises beside the type of its answer."""
