"""The contract, checked: run these against your plugin; gpusage's built-in plugins run the same.

Each function asks a hook with made-up values and raises `AssertionError` with one sentence where an answer breaks the
contract. Nothing here needs pytest. `check_plugin` runs what applies to a whole plugin.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

from gpusage_hooks import samples, specs
from gpusage_hooks.asking import Hook, ask, call, conforms, require, sound_answer
from gpusage_hooks.errors import GraphError
from gpusage_hooks.managers import manager_fault
from gpusage_hooks.types import Activity, Case, Code, Decision, GpuRequest, Interval, ModelGraph


def check_plugin(plugin: object, *, sources: Iterable[str] = (), cases: Iterable[Case] = ()) -> tuple[str, ...]:
    """Check every hook that *plugin*, a module or an object, implements.

    Args:
        plugin: As it would be registered.
        sources: Models that its reader must be able to read, beside the made-up ones that it must leave to others.
        cases: Cases for its policies, beside the made-up ones.

    Returns:
        The hooks that were checked.
    """
    hooks = implemented(plugin)
    for name, function in hooks.items():
        surplus = {"sources": sources} if name == "read_model" else {"cases": cases} if name in POLICIES else {}
        CHECKS[name](function, **surplus)
    return tuple(hooks)


def implemented(plugin: object) -> dict[str, Hook]:
    """Return the hooks that *plugin* implements, by the name of the hook.

    Raises:
        AssertionError: A function is marked as a hook that does not exist, or takes an argument that the hook lacks.
    """
    found = {}
    for attribute in dir(plugin):
        function = getattr(plugin, attribute, None)
        marks = getattr(function, "gpusage_impl", None)
        if not callable(function) or not isinstance(marks, Mapping):
            continue
        name = marks.get("specname") or attribute
        specification: Any = getattr(specs, name, None)
        require(hasattr(specification, "gpusage_spec"), f"{attribute!r} must implement a hook; got no hook {name!r}")
        known, taken = inspect.signature(specification).parameters, inspect.signature(function).parameters
        surplus = [word for word in taken if word not in known]
        require(not surplus, f"hook {name!r} must take no arguments but {list(known)}; got {surplus}")
        found[name] = function
    return found


def check_reader(function: Hook, *, sources: Iterable[str] = (), broken: Iterable[str] = ()) -> None:
    """Check a reader: it leaves other formats to others, reads *sources*, and refuses *broken* with a GraphError."""
    for foreign in ("", "no-such-prefix:model", "/no/such/folder/model.no-such-suffix", "a\0b.no-such-suffix"):
        answer = sound_answer("read_model", function, source=foreign, shape={})
        require(answer is None, f"read_model must answer None to {foreign!r}, which is no format; got {answer!r:.80}")
    for source in sources:
        graph = sound_answer("read_model", function, source=source, shape={})
        require(graph is not None, f"read_model must read {source!r}; got None")
        check_graph(graph)
    for source in broken:
        _check_refusal(function, source)


def check_graph(graph: ModelGraph) -> None:
    """Check that *graph* is whole: nodes in an order in which they can run, shapes that are sizes."""
    conforms(graph, ModelGraph, "the graph")
    require(len(graph.nodes) > 0, "the graph must have nodes; got none")
    require(graph.parameter_count >= 0, f"parameter_count must be 0 or more; got {graph.parameter_count}")
    count = len(graph.producers)
    require(count == len(graph.nodes), f"producers must have one entry a node; got {count} for {len(graph.nodes)}")
    for index, (node, makers) in enumerate(zip(graph.nodes, graph.producers, strict=True)):
        where = f"node {index} ({node.op_type})"
        require(len(makers) == len(node.inputs), f"{where} must have one producer an input; got {makers}")
        early = all(-len(graph.inputs) <= maker < index for maker in makers)
        require(early, f"{where} must read model inputs or earlier nodes only; got producers {makers}")
        fixed = all(size >= 0 for shape in node.parameters for size in shape)
        require(fixed, f"{where} must have weights that do not follow the batch; got {node.parameters}")
        names = [name for name, _ in node.attributes]
        require(names == sorted(names), f"{where} must have its attributes sorted by name; got {names}")


def check_gpus(function: Hook) -> None:
    """Check rows for the catalogue: names in lower case and once each, figures above 0, a source."""
    rows = sound_answer("describe_gpus", function) or ()
    names = [row.name for row in rows]
    require(len(names) == len(set(names)), f"describe_gpus must name each GPU once; got {sorted(names)}")
    for row in rows:
        require(row.name == row.name.strip().lower() != "", f"a GPU's name must be lower-case; got {row.name!r}")
        require(bool(row.source.strip()), f"GPU {row.name!r} must have a source; got none")
        require("fp32" in row.peak_flop_per_s, f"GPU {row.name!r} must have a peak for fp32; got none")
        figures = chain(
            row.peak_flop_per_s.values(),
            (row.sm_count, row.clock_hz, row.memory_bytes, row.bandwidth_bytes_per_s, row.l2_bytes, row.power_limit_w),
        )
        require(
            all(math.isfinite(figure) and figure > 0 for figure in figures),
            f"GPU {row.name!r} must have finite figures above 0; got {row!r}",
        )


def check_predictor(function: Hook, *, hook: str, graph: ModelGraph | None = None) -> None:
    """Check a predictor of step time, memory or activity, named by *hook*: one sound interval a GPU, in their order."""
    gpus = samples.gpus()
    for workload in samples.workloads():
        question = {"graph": graph or samples.graph(), "workload": workload}
        answer = sound_answer(hook, function, **question, gpus=gpus)
        if answer is None:
            continue
        require(len(answer) == len(gpus), f"{hook} must give one entry a GPU; got {len(answer)} for {len(gpus)}")
        for entry in answer:
            _check_prediction(hook, entry)
        turned = sound_answer(hook, function, **question, gpus=gpus[::-1])
        require(_alike(turned[::-1], answer), f"{hook} must follow the order of the GPUs; got another one")
        alone = [sound_answer(hook, function, **question, gpus=(gpu,))[0] for gpu in gpus]
        require(_alike(alone, answer), f"{hook} must not depend on which other GPUs are asked for; it does")


def check_slowdown(function: Hook) -> None:
    """Check a predictor of slowdowns: one sound interval a part, at least 1, none on a whole GPU."""
    gpus = samples.gpus()
    parts = [(gpu, samples.half(gpu)) for gpu in gpus]
    for workload, alone in product(samples.workloads(), samples.runs_alone()):
        question = {"graph": samples.graph(), "workload": workload, "alone": alone}
        answer = sound_answer("predict_slowdown", function, **question, gpus=gpus, parts=parts)
        if answer is None:
            continue
        counts = [len(of_gpu) for of_gpu in answer]
        require(counts == [2] * len(gpus), f"predict_slowdown must give one entry for each part; got {counts}")
        for whole, half in answer:
            check_interval(half, "predict_slowdown", least=1.0)
            require(whole.low == whole.high == 1.0, f"predict_slowdown must be exactly 1 on a whole GPU; got {whole}")


def check_colocation(function: Hook) -> None:
    """Check a co-location predictor: one entry a job, throughputs from 0 to 1 in sound intervals."""
    gpu = samples.gpus()[0]
    for count in (1, 2, 3):
        answer = sound_answer("predict_colocation", function, needs=(samples.need(gpu),) * count, gpu=gpu)
        if answer is None:
            continue
        rows = (answer.normalised_throughput, answer.mps_thread_percent, answer.memory_cap_bytes)
        require(answer.gpu == gpu.name, f"predict_colocation must name GPU {gpu.name!r}; got {answer.gpu!r}")
        require(
            {len(row) for row in rows} == {count},
            f"predict_colocation must give one entry a job; got {[len(row) for row in rows]} for {count}",
        )
        for throughput in answer.normalised_throughput:
            check_interval(throughput, "normalised_throughput", least=0.0, most=1.0)
        check_interval(answer.throughput_sum, "throughput_sum", least=0.0, most=float(count))
        right = all(1 <= percent <= 100 for percent in answer.mps_thread_percent)  # noqa: PLR2004 - percent
        require(right, f"mps_thread_percent must be 1 to 100; got {answer.mps_thread_percent}")


def check_interval(interval: Interval, name: str, *, least: float, most: float = math.inf) -> None:
    """Check that *interval* is finite, ordered, and within *least* and *most*."""
    conforms(interval, Interval, name)
    ends = (interval.low, interval.value, interval.high)
    require(all(math.isfinite(end) for end in ends), f"{name} must be finite; got {ends}")
    require(ends[0] <= ends[1] <= ends[2], f"{name} must be ordered low, value, high; got {ends}")
    require(least <= ends[0] and ends[2] <= most, f"{name} must lie from {least} to {most}; got {ends}")


def check_policy(function: Hook, *, hook: str, cases: Iterable[Case] = ()) -> None:
    """Check the policy that implements *hook* on every made-up case and on *cases*."""
    for case in chain(samples.cases(), cases):
        for draft in samples.drafts(case):
            answer = sound_answer(hook, function, case=case, draft=draft)
            if answer is not None:
                check_decision(answer, case, draft)


def check_decision(decision: Decision, case: Case, draft: Decision) -> None:
    """Check that *decision*, made on *draft*, takes nothing that the user did not ask for and says why."""
    asked, wanted = case.request, decision.request
    require(bool(decision.plugin), "a decision must name its plugin; got ''")
    if decision.final or wanted != draft.request:
        said = bool(decision.reasons) and all(reason.strip() for reason in decision.reasons)
        require(said, f"a decision that changes or ends something must have reasons; got {decision.reasons}")
    if decision.code is not Code.REWRITE and decision.final:
        require(wanted == asked, f"a final {decision.code.name} must leave the request as it is; got {wanted}")
    require(asked.gpu_type in (None, wanted.gpu_type), f"a named GPU type must be kept; got {wanted.gpu_type!r}")
    require(wanted.gpu_count <= asked.gpu_count, f"no more GPUs than asked for may be given; got {wanted.gpu_count}")
    known = {pool.site_type for pool in case.cluster.pools}
    stray = [name for name in wanted.preferred_gpus if name not in known]
    require(not stray, f"preferred GPUs must be in the cluster; got {stray}")
    _check_share(wanted)


def check_manager(function: Hook) -> None:
    """Check the description of a workload manager: its name, and that each of its settings has a default."""
    answer = sound_answer("describe_manager", function)
    fault = None if answer is None else manager_fault(answer)
    require(fault is None, f"describe_manager must describe a manager: {fault}")


def check_parser(function: Hook) -> None:
    """Check an adapter's parser: another manager's submission is left to others."""
    submission = samples.job().submission
    answer = sound_answer("parse_submission", function, submission=submission)
    require(answer is None, f"parse_submission must leave manager {submission.manager!r} to others; got {answer!r:.80}")


def check_renderer(function: Hook) -> None:
    """Check an adapter's renderer: another manager's job is left to others."""
    case = samples.case()
    question = {"job": samples.job(), "decision": samples.draft(case), "cluster": case.cluster}
    answer = sound_answer("render_decision", function, **question)
    require(answer is None, f"render_decision must leave another manager's job to others; got {answer!r:.80}")


def check_observer(function: Hook) -> None:
    """Check an adapter's observer: another manager is left to others."""
    answer = sound_answer("observe_cluster", function, manager=samples.MANAGER, context=samples.context())
    require(answer is None, f"observe_cluster must leave manager {samples.MANAGER!r} to others; got {answer!r:.80}")


def check_finder(function: Hook) -> None:
    """Check an adapter's finder: an id that no manager could have given is left to others."""
    for job_id in ("sample:1", "no such job"):
        answer = sound_answer("find_jobs", function, job_id=job_id, user="")
        require(answer is None, f"find_jobs must leave id {job_id!r} to others; got {answer!r:.80}")


def check_sharers(function: Hook) -> None:
    """Check an adapter's list of shared jobs: another manager is left to others."""
    answer = sound_answer("shared_jobs", function, manager=samples.MANAGER, states=("waiting",))
    require(answer is None, f"shared_jobs must leave manager {samples.MANAGER!r} to others; got {answer!r:.80}")


def check_turning(function: Hook) -> None:
    """Check an adapter's way back: another manager's job is left to others."""
    answer = sound_answer("turn_back", function, job=samples.marked_job(), reason="it cannot start")
    require(answer is None, f"turn_back must leave another manager's job to others; got {answer!r:.80}")


def check_commands(function: Hook) -> None:
    """Check commands: each has a name of its own, as click's do."""
    names = [getattr(command, "name", None) for command in ask("add_commands", function) or ()]
    right = all(isinstance(name, str) and name for name in names) and len(names) == len(set(names))
    require(right, f"add_commands must give click commands, each with a name of its own; got {names}")


def check_listener(function: Hook) -> None:
    """Check a listener: it hears of a decision and answers nothing."""
    sound_answer("decision_made", function, record=samples.record())


def _check_refusal(function: Hook, source: str) -> None:
    try:
        found = call(function, source=source, shape={})
    except GraphError as error:
        require("\n" not in str(error), f"a GraphError must be one line; got {str(error)!r}")
        return
    message = f"read_model must refuse {source!r} with a GraphError; got {found!r:.80}."
    raise AssertionError(message)


def _check_prediction(hook: str, entry: Interval | Activity) -> None:
    if isinstance(entry, Activity):
        for name in ("gpu_utilization", "sm_activity", "dram_activity"):
            check_interval(getattr(entry, name), name, least=0.0, most=1.0)
    else:
        check_interval(entry, hook.removeprefix("predict_"), least=math.ulp(0.0))


def _alike(some: Sequence[Interval | Activity], others: Sequence[Interval | Activity]) -> bool:
    """Tell whether two answers are the same but for the last digits: sums of arrays depend on the arrays' shapes."""
    pairs = zip(map(_figures, some), map(_figures, others), strict=True)
    return all(math.isclose(one, other, rel_tol=1e-9) for row in pairs for one, other in zip(*row, strict=True))


def _figures(entry: Interval | Activity) -> tuple[float, ...]:
    if isinstance(entry, Activity):
        return tuple(chain(*map(_figures, (entry.gpu_utilization, entry.sm_activity, entry.dram_activity))))
    return entry.low, entry.value, entry.high


def _check_share(wanted: GpuRequest) -> None:
    share, cap_bytes = wanted.mps_thread_percent, wanted.memory_cap_bytes
    require(share is None or 1 <= share <= 100, f"a share must be 1 to 100 percent; got {share}")  # noqa: PLR2004
    require(share is None or wanted.gpu_count == 0, f"a share must replace the whole GPU; got {wanted.gpu_count} too")
    require(cap_bytes is None or cap_bytes > 0, f"a memory cap must be above 0 bytes; got {cap_bytes}")


PREDICTORS = ("predict_step_time", "predict_memory", "predict_activity")
POLICIES = ("decide_eligibility", "decide_fit", "decide_generation", "decide_sharing", "decide_slo")
CHECKS: Mapping[str, Callable[..., None]] = {
    "read_model": check_reader,
    "describe_gpus": check_gpus,
    **{hook: partial(check_predictor, hook=hook) for hook in PREDICTORS},
    "predict_slowdown": check_slowdown,
    "predict_colocation": check_colocation,
    **{hook: partial(check_policy, hook=hook) for hook in POLICIES},
    "describe_manager": check_manager,
    "parse_submission": check_parser,
    "render_decision": check_renderer,
    "observe_cluster": check_observer,
    "find_jobs": check_finder,
    "shared_jobs": check_sharers,
    "turn_back": check_turning,
    "add_commands": check_commands,
    "decision_made": check_listener,
}
"""The check of each hook; a test of gpusage's own fails where a hook has none."""
