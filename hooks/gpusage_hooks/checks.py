"""The contract, checked: run these against your plugin; gpusage's built-in plugins run the same.

Each function asks a hook with made-up values and raises `AssertionError` with one sentence where an answer breaks the
contract. Nothing here needs pytest. `check_plugin` runs what applies to a whole plugin.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from gpusage_hooks import samples
from gpusage_hooks.answers import check_answer
from gpusage_hooks.answers import check_decision as check_decision
from gpusage_hooks.answers import check_graph as check_graph
from gpusage_hooks.answers import check_interval as check_interval
from gpusage_hooks.conformance import Hook, check_api, require
from gpusage_hooks.conformance import implemented as implemented
from gpusage_hooks.errors import GpuUsageError, GraphError
from gpusage_hooks.managers import Context, Manager
from gpusage_hooks.types import STAGES, Code, Gpu, GpuRequest, ModelGraph, PolicyInput

_MANAGER = {"manager": samples.MANAGER, "context": samples.context()}
_JOB = {"job": samples.marked_job(), "context": samples.context()}
_FILE = {"path": samples.NO_FILE}
_QUESTIONS: Mapping[str, Mapping[str, Any]] = {
    "parse_submission": {"submission": samples.job().submission, "context": samples.context()},
    "observe_cluster": _MANAGER,
    "read_cluster": {**_FILE, "catalogue": samples.catalogue()},
    "read_past_jobs": _FILE,
    "collect_past_jobs": {**_MANAGER, "since_s": 0.0},
    "find_jobs": {**_MANAGER, "job_id": "sample:1", "user": ""},
    "find_shared_jobs": {**_MANAGER, "states": ("waiting",)},
    "restore_request": {**_JOB, "reason": "it cannot start"},
    "find_out_of_memory_jobs": _MANAGER,
    "requeue_on_whole_gpu": {**_JOB, "reason": "out of memory"},
    "collect_usage": _MANAGER,
    "read_accounting": {**_MANAGER, "since_s": 0.0, "until_s": 1.0},
    "read_gpu": {"device": samples.DEVICE},
}
"""Of each hook that answers for one manager, file or GPU, a question about another one."""


def sound_answer(hook: str, function: Hook, **question: Any) -> Any:  # whatever the hook answers
    """Return the answer to *question*, after the checks of every hook: soundness, purity, and untouched arguments."""
    before = repr(question)
    answer = ask(hook, function, **question)
    check_answer(hook, question, answer)

    # gpusaged remembers whole answers, and hands the same arguments to the next plugin.
    require(ask(hook, function, **question) == answer, f"{hook} must answer the same question alike; it does not")
    require(repr(question) == before, f"{hook} must leave its arguments as they are; it changed one")
    return answer


def ask(hook: str, function: Hook, **question: Any) -> Any:  # whatever the hook answers
    """Return the answer to *question*, which is sound, so that nothing may be raised."""
    try:
        return call(function, **question)
    except GpuUsageError as error:
        message = f"{hook} must answer sound values; it refused them with {type(error).__name__}: {error}"
        raise AssertionError(message) from error
    except Exception as error:
        message = f"{hook} must raise nothing but GpuUsageError; it raised {type(error).__name__}: {error}"
        raise AssertionError(message) from error


def call(function: Hook, **question: Any) -> Any:  # whatever the hook answers
    """Call *function* as pluggy does, with the arguments that it names."""
    taken = inspect.signature(function).parameters
    return function(**{name: value for name, value in question.items() if name in taken})


def check_plugin(
    plugin: object, *, sources: Iterable[str] = (), policy_inputs: Iterable[PolicyInput] = ()
) -> tuple[str, ...]:
    """Check every hook that *plugin*, a module or an object, implements.

    Args:
        plugin: As it would be registered.
        sources: Models that its reader must be able to read, beside the made-up ones that it must leave to others.
        policy_inputs: Inputs for its policies, beside the made-up ones.

    Returns:
        The hooks that were checked.
    """
    check_api(plugin)
    hooks = implemented(plugin)

    # A renderer is tried with jobs of the manager that the same plugin describes.
    more: Mapping[str, Mapping[str, Any]] = {
        "read_model": {"sources": sources},
        "decide": {"policy_inputs": policy_inputs},
        "render_decision": {"manager": hooks.get("describe_manager")},
    }
    for name, function in hooks.items():
        CHECKS[name](function, **more.get(name, {}))
    return tuple(hooks)


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
        try:
            answer = call(function, source=source, shape={})
        except GraphError as error:
            require("\n" not in str(error), f"a GraphError must be one line; got {str(error)!r}")
            continue
        message = f"read_model must refuse {source!r} with a GraphError; got {answer!r:.80}."
        raise AssertionError(message)


def check_observed_figures(function: Hook) -> None:
    """Check observed figures: they are sound, have their sources, and follow the order of the GPUs."""
    for workload in samples.workloads():
        _check_order(
            "find_observed_figures",
            function,
            {"graph": samples.graph(), "workload": workload, "submitter": samples.submitter()},
        )


def check_predictor(function: Hook, *, graph: ModelGraph | None = None) -> None:
    """Check a predictor of needs: a sound need for each GPU, in their order, that takes observed figures.

    Args:
        function: Implements `predict_needs`.
        graph: What it is asked about; a small made-up model where none is named.
    """
    for workload, known in product(samples.workloads(), samples.knowledge()):
        question = {"graph": graph or samples.graph(), "workload": workload}
        for need in _check_order("predict_needs", function, question, known=known) or ():
            for name in ("step_time_s", "gpu_utilization", "memory_bytes"):
                figure, predicted = getattr(known, name), getattr(need, name)
                is_known = figure is None or figure.interval == predicted
                require(is_known, f"predict_needs must take the {name} that is known; got {predicted}")


def _check_order(hook: str, function: Hook, question: dict[str, Any], **of_each: object) -> Sequence[Any] | None:
    """Check that the answer follows the order of the GPUs, and that no entry depends on the other GPUs of the question.

    Args:
        hook: What is asked.
        function: Implements it.
        question: What does not depend on the GPUs.
        of_each: Arguments that have one entry for each GPU, here the same for all.
    """
    gpus = samples.gpus()

    def ask(rows: Sequence[Gpu]) -> Sequence[Any] | None:
        more = {name: (value,) * len(rows) for name, value in of_each.items()}
        answer: Sequence[Any] | None = sound_answer(hook, function, **question, gpus=rows, **more)
        return answer

    answer = ask(gpus)
    if answer is None:
        return None

    # `gpusage predict` asks for other GPUs than a decision does, and both must show the same figures.
    turned, alone = ask(gpus[::-1]), [ask((gpu,)) for gpu in gpus]
    require(turned is not None and _are_nearly_equal(turned[::-1], answer), f"{hook} must follow the order of the GPUs")
    require(
        None not in alone and _are_nearly_equal([row[0] for row in alone if row], answer),
        f"{hook} must not depend on which other GPUs are asked for; it does",
    )
    return answer


def check_slowdown(function: Hook) -> None:
    """Check a predictor of slowdowns: a sound interval for each part, at least 1, and 1 on a whole GPU."""
    gpus = samples.gpus()
    parts = [(gpu, samples.half(gpu)) for gpu in gpus]
    for workload, known in product(samples.workloads(), samples.knowledge()):
        question = {"graph": samples.graph(), "workload": workload, "known": (known,) * len(gpus)}
        sound_answer("predict_slowdown", function, **question, gpus=gpus, parts=parts)


def check_colocation(function: Hook) -> None:
    """Check a co-location predictor: an entry for each job, throughputs from 0 to 1 in sound intervals."""
    gpu = samples.gpus()[0]
    for count in (1, 2, 3):
        sound_answer("predict_colocation", function, needs=(samples.need(gpu),) * count, gpu=gpu)


def check_policy(function: Hook, *, policy_inputs: Iterable[PolicyInput] = ()) -> None:
    """Check a policy at every stage, on every made-up input and on *policy_inputs*."""
    for stage, policy_input in product(STAGES, [*samples.policy_inputs(), *policy_inputs]):
        for draft in samples.drafts(policy_input):
            sound_answer("decide", function, stage=stage, policy_input=policy_input, draft=draft)


def check_left_to_others(hook: str, function: Hook) -> None:
    """Check a hook that answers for one manager, file or GPU: another one is left to others."""
    question = _QUESTIONS[hook]
    answer = sound_answer(hook, function, **question)
    if "device" in question:
        whose = "a GPU that is not there"
    else:
        whose = repr(question["path"]) if "path" in question else f"manager {samples.MANAGER!r}"
    require(answer is None, f"{hook} must leave {whose} to others; got {answer!r:.80}")


def check_renderer(function: Hook, *, manager: Hook | None = None) -> None:
    """Check an adapter's renderer: another manager's job is left to others; of its own, no GPU type is dropped.

    Args:
        function: Implements `render_decision`.
        manager: Implements `describe_manager` in the same plugin; without it the adapter's own jobs are not tried.
    """
    policy_input = samples.policy_input()
    question = {"job": samples.job(), "decision": samples.draft(policy_input), "cluster": policy_input.cluster}
    answer = sound_answer("render_decision", function, **question, context=samples.context())
    require(answer is None, f"render_decision must leave another manager's job to others; got {answer!r:.80}")
    own: Manager | None = call(manager) if manager else None
    if own is None:
        return

    # Of its own jobs, each GPU type that a decision requires is expressed, or no field is set at all.
    types = tuple(pool.site_type for pool in policy_input.cluster.pools)
    question = {
        "job": samples.job(own.name),
        "cluster": replace(policy_input.cluster, manager=own.name),
        "context": Context(settings=own.settings(), catalogue=samples.catalogue()),
    }

    def render(request: GpuRequest) -> Mapping[str, str]:
        decision = replace(samples.draft(policy_input), code=Code.REWRITE, request=request, reasons=("a check",))
        rendered = sound_answer("render_decision", function, **question, decision=decision)
        require(rendered is not None, f"render_decision must answer for a job of its own manager, {own.name!r}")
        fields: Mapping[str, str] = rendered.fields
        return fields

    whole = policy_input.request
    for request in (whole, replace(whole, gpu_count=0, mps_thread_percent=50)):
        one, two = (replace(request, required_gpus=types[:count]) for count in (1, 2))
        rows = [(one, request, types[:1]), (two, request, types[:2]), (two, one, types[1:2])]
        rows += [(replace(whole, slice_type=types[0]), whole, types[:1])] if request is whole else []
        for bound, loose, dropped in rows:
            fields = render(bound)
            require(
                not fields or fields != render(loose),
                f"render_decision must express each GPU type that a decision requires, or set no fields and say why "
                f"in 'trouble'; it drops {', '.join(dropped)} of {', '.join(bound.bound_types)}, and sets {fields}",
            )


def check_commands(function: Hook) -> None:
    """Check commands: each has a name of its own, as click's do."""
    check_answer("add_commands", {}, ask("add_commands", function))


def check_listener(function: Hook) -> None:
    """Check a listener: it receives a decision and returns nothing."""
    sound_answer("decision_made", function, record=samples.record())


def check_usage_listener(function: Hook) -> None:
    """Check a listener to usage: of an observed job, and of a job that nobody observed."""
    for usage in samples.usages():
        sound_answer("usage_observed", function, usage=usage)


def _are_nearly_equal(some: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether two answers are the same but for the last digits: sums of arrays depend on the arrays' shapes."""
    return all(_is_alike(one, other) for one, other in zip(some, others, strict=True))


def _is_alike(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    if type(one) is not type(other) or isinstance(one, type) or not is_dataclass(one):
        return one == other
    return all(_is_alike(getattr(one, item.name), getattr(other, item.name)) for item in fields(one))


CHECKS: Mapping[str, Callable[..., None]] = {
    "read_model": check_reader,
    **{hook: partial(sound_answer, hook) for hook in ("describe_model_names", "describe_gpus", "describe_manager")},
    "find_observed_figures": check_observed_figures,
    "predict_needs": check_predictor,
    "predict_slowdown": check_slowdown,
    "predict_colocation": check_colocation,
    "decide": check_policy,
    "render_decision": check_renderer,
    "add_commands": check_commands,
    "decision_made": check_listener,
    "usage_observed": check_usage_listener,
    **{hook: partial(check_left_to_others, hook) for hook in _QUESTIONS},
}
"""The check of each hook; a test of gpusage's own fails where a hook has none."""
