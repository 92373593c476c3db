"""A Slurm submission -> Job: what it asks of GPUs, and what a share would break.

A GPU request stands in one of four places: per node (`--gres`, `--gpus-per-node`), per job (`--gpus`), per socket
(`--gpus-per-socket`) and per task (`--gpus-per-task`, `--tres-per-task`). All four are looked at. A malformed resource
is an obstacle, not an error: Slurm itself tells the user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpusage.graphs.card.error import ERROR_MARK
from gpusage_hooks.comment import MODEL_NAMES, is_model_path, parse_comment, parse_learn
from gpusage_hooks.types import DecisionRequest, GpuRequest, Job, ModelRequest, Submitter
from gpusage_hooks.units import MIB
from gpusage_slurm.settings import MANAGER
from gpusage_slurm.submission.deadline import seconds_left
from gpusage_slurm.submission.missing_card import CAVEAT, ONLY_BATCH, exports_all, is_batch, missing_card_reason
from gpusage_slurm.submission.placement import NODE_NAME, feature_groups
from gpusage_slurm.submission.script import read_script, run_record
from gpusage_slurm.tres import Tres, is_gpu, is_share, parse_tres

TRES_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task")
_CHANNELS = ("comment", "variable_comment", "script_comment")
"""Where a user's words to us stand, the first that says something first."""
EXCLUSIVE = "0"
"""JOB_SHARED_NONE of slurm.h."""

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MAXIMUM_CARD_CHARACTERS = 64 * 1024
_MAXIMUM_LIST_CHARACTERS = 256
_TOO_LONG = Tres(
    text=f"a list of more than {_MAXIMUM_LIST_CHARACTERS} characters", name="gpu", generic=True, count=None
)
_OPTIONS = {
    "cpus_per_tres": "--cpus-per-gpu counts whole GPUs",
    "mem_per_tres": "--mem-per-gpu counts whole GPUs",
    "ntasks_per_tres": "--ntasks-per-gpu counts whole GPUs",
    "tres_freq": "--gpu-freq needs a GPU of its own",
}
_NODE_TIES = (
    *("prefer", "req_nodes", "exc_nodes", "reservation", "pn_min_tmp_disk"),
    *("sockets_per_node", "cores_per_socket", "threads_per_core"),
)
"""What a job may ask of its nodes that no description of a cluster has, and a preference, which no constraint joins."""
_MOST_EXCLUDED = 8
"""Names that a user may exclude and more be added: slurmctld takes 1024 bytes."""
_SCRIPT_OPTIONS = {
    "cpus-per-gpu": "its script or environment has --cpus-per-gpu for an srun, which counts whole GPUs",
    "unread": "its script is too long to look for srun lines that need a whole GPU",
}


def parse_submission(submission: DecisionRequest, model_names: Sequence[str] = MODEL_NAMES) -> Job | None:
    """Parse the fields of job_submit, or the `#SBATCH` lines of a script.

    Args:
        submission: Of any workload manager.
        model_names: How models are named here, `Context.model_names`.

    Raises:
        RequestError: The comment is addressed to us and malformed, or its deadline is over.
    """
    if submission.manager != MANAGER:
        return None
    fields = {**read_script(submission.script), **submission.fields} if submission.script else submission.fields
    card = fields.get("card", "")
    is_recorded = bool(submission.script) and _learn_switch(fields) is not False
    fits = 0 < len(card) <= _MAXIMUM_CARD_CHARACTERS and not card.startswith(ERROR_MARK)
    return Job(
        submission=replace(submission, fields=fields) if submission.script else submission,
        request=read_request(fields),
        request_text=describe_request(fields),
        model_request=_with_model_path(fields, _read_model_request(fields, model_names), model_names),
        card=card if fits else None,
        card_trouble=None if fits else missing_card_reason(fields),
        submitter=Submitter(fields=fields, user_field="user_id", job_name_field="name"),
        dry_run=fields.get("dry_run") == "1",
        shows_model=fields.get("shows_model") == "1" and bool(_learn_switch(fields)),
        run_record=run_record(submission.script or "", fields.get("work_dir", "")) if is_recorded else "",
        caveat=CAVEAT.format(fields["export"]) if submission.script and not exports_all(fields) else None,
    )


def _read_model_request(fields: Mapping[str, str], model_names: Sequence[str]) -> ModelRequest | None:
    """Return the user's model request: from the comment, else GPUSAGE_COMMENT, else the script's #GPUSAGE lines.

    Raises:
        RequestError: The first of them that is addressed to us is malformed.
    """
    for channel in _CHANNELS:
        text = fields.get(channel, "")
        request = parse_comment(text, model_names) if text else None
        if request is not None:
            return request
    return None


def _learn_switch(fields: Mapping[str, str]) -> bool | None:
    """Return whether the user's words are ``learn=on`` or ``learn=off``; a site may observe jobs that say nothing."""
    switches = (parse_learn(fields.get(channel, "")) for channel in _CHANNELS)
    return next((switch for switch in switches if switch is not None), None)


def _with_model_path(
    fields: Mapping[str, str], model_request: ModelRequest | None, model_names: Sequence[str]
) -> ModelRequest | None:
    """Return *model_request*, its path relative to the folder of a script's `--chdir`, as sbatch resolves it.

    The folder is read only for a relative path: jobs that differ in a field that nobody read have the same answer.
    """
    if model_request is None or model_request.model.startswith(("~", "/")):
        return model_request
    if not is_model_path(model_request.model, model_names):
        return model_request
    return replace(model_request, model=os.path.join(fields.get("work_dir", ""), model_request.model))  # noqa: PTH118 - any text


def read_request(fields: Mapping[str, str]) -> GpuRequest:
    """Return the request of *fields*: the GPUs of the whole job, their type, and obstacles to a share."""
    gpus = _gpu_tres(fields)
    kinds = {resource.kind for _, resource in gpus}
    gpu_count = _gpu_count(fields, gpus)
    return GpuRequest(
        gpu_count=gpu_count,
        gpu_type=next(iter(kinds)) if len(kinds) == 1 else None,
        obstacles=tuple(_obstacles(fields, gpus, kinds)) if gpu_count or gpus else (),
        partitions=tuple(name for name in fields.get("partition", "").split(",") if name),
        scopes=tuple(_scopes(fields)),
        # Slurm tries the job's own preference in place of its constraint, so then that confines nothing.
        node_features=() if fields.get("prefer") else feature_groups(fields.get("features", "")),
        cpu_count=_cpu_count(fields),
        host_memory_bytes=_host_memory_bytes(fields),
        task_count=array_task_count(fields.get("array_inx", "")),
        bindable=_is_bindable(fields),
        deadline_s=_deadline_s(fields.get("deadline", "")),
        avoided_nodes=_excluded_nodes(fields),
        steerable=_is_steerable(fields),
        repeatable=not fields.get("unrepeatable"),
    )


def describe_request(fields: Mapping[str, str]) -> str:
    """Return the GPU request in Slurm's newer spelling, for people: ``gres/gpu:v100:1``, ``gres/gpu:2 per task``."""
    words = [
        _format_tres(resource) + (f" per {field.rpartition('_')[2]}" if field != "tres_per_node" else "")
        for field in TRES_FIELDS
        for resource in _requested_tres(fields, field)
        if is_gpu(resource) or is_share(resource)
    ]
    if len(words) == 1 and _gpu_count(fields, _gpu_tres(fields)) <= 1:
        words = [words[0].partition(" ")[0]]
    return ", ".join(words) or "no GPU"


def number(fields: Mapping[str, str], name: str) -> int | None:
    """Return the whole number in field *name*, ``None`` where it was not given or is none."""
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None  # uint32


def _requested_tres(fields: Mapping[str, str], field: str) -> tuple[Tres, ...]:
    """Return the TRES of *field*; a list longer than people write is not parsed, which would take slurmctld's time."""
    text = fields.get(field, "")
    return parse_tres(text) if len(text) <= _MAXIMUM_LIST_CHARACTERS else (_TOO_LONG,)


def _format_tres(resource: Tres) -> str:
    count = "?" if resource.count is None else resource.count
    return ":".join(str(word) for word in (f"gres/{resource.name}", resource.kind, count) if word is not None)


def _gpu_tres(fields: Mapping[str, str]) -> list[tuple[str, Tres]]:
    """Return each GPU request with its field."""
    return [
        (field, resource) for field in TRES_FIELDS for resource in _requested_tres(fields, field) if is_gpu(resource)
    ]


def _gpu_count(fields: Mapping[str, str], gpus: list[tuple[str, Tres]]) -> int:
    return max(_gpu_count_at(fields, gpus, field) for field in TRES_FIELDS)


def _gpu_count_at(fields: Mapping[str, str], gpus: list[tuple[str, Tres]], field: str) -> int:
    """Return the GPUs of the request in *field*, over all nodes, sockets or tasks of the job."""
    nodes = max(number(fields, "min_nodes") or 1, 1)
    times = {
        "tres_per_node": nodes,
        "tres_per_job": 1,
        "tres_per_socket": nodes * max(number(fields, "sockets_per_node") or 1, 1),
        "tres_per_task": _task_count(fields),
    }
    return times[field] * sum(resource.count or 0 for name, resource in gpus if name == field)


def _task_count(fields: Mapping[str, str]) -> int:
    """Return how many tasks the job starts: with `--ntasks-per-node` alone, sbatch leaves it to slurmctld to count."""
    per_node, nodes = number(fields, "ntasks_per_node"), number(fields, "min_nodes") or 1
    return max(number(fields, "num_tasks") or (per_node * nodes if per_node else 1), 1)


def _deadline_s(text: str) -> int | None:
    return seconds_left(text, datetime.now()) if text else None  # noqa: DTZ005 - Slurm's times are of the host's clock


def _cpu_count(fields: Mapping[str, str]) -> int:
    """Return the cores that the job requests of its node."""
    return max(number(fields, name) or 1 for name in ("min_cpus", "pn_min_cpus", "cpus_per_task"))


def _host_memory_bytes(fields: Mapping[str, str]) -> int:
    """Return the memory that the job requests of its node."""
    of_node, of_cpu = (number(fields, name) or 0 for name in ("min_mem_per_node", "min_mem_per_cpu"))
    return max(of_node, of_cpu * _cpu_count(fields)) * MIB


def array_task_count(indices: str) -> int:
    """Return how many tasks of an array may run at once: ``0-9:3%2`` has 4, of which 2; 1 where *indices* are none."""
    listed, _, at_once = indices.partition("%")
    ranges = [_RANGE.fullmatch(word) for word in listed.split(",")] if listed else []
    count = sum(_range_length(*match.groups()) for match in ranges if match)
    return max(min(count, int(at_once)) if at_once.isdigit() and int(at_once) else count, 1)


def _range_length(first: str, last: str | None, step: str | None) -> int:
    return (int(last or first) - int(first)) // max(int(step or 1), 1) + 1


def _is_bindable(fields: Mapping[str, str], *, may_exclude: bool = False) -> bool:
    """Return whether the job can be bound to a GPU type, and nothing unknown to us ties it to other nodes.

    slurmctld refuses a job that none of its nodes could ever run, and one that waits for a node beyond its reservation
    waits for ever.
    """
    constraint = fields.get("features", "")
    others = [
        item for place in TRES_FIELDS for item in _requested_tres(fields, place) if item.generic and not is_gpu(item)
    ]
    return (
        not others
        and not any(fields.get(name) for name in _NODE_TIES if not (may_exclude and name == "exc_nodes"))
        and (not constraint or bool(feature_groups(constraint)))
    )


def _excluded_nodes(fields: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes that the user excludes; none where they are not a plain list of names."""
    names = tuple(fields.get("exc_nodes", "").split(","))
    return names if all(map(NODE_NAME.fullmatch, names)) and len(names) <= _MOST_EXCLUDED else ()


def _is_steerable(fields: Mapping[str, str]) -> bool:
    """Return whether nodes can be excluded for the job: it is bindable, or its user excludes nodes by name."""
    known = bool(_excluded_nodes(fields)) or not fields.get("exc_nodes")
    return known and _is_bindable(fields, may_exclude=True)


def _scopes(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the reservations that the job names, and the quality of service that it will have."""
    for name in fields.get("reservation", "").split(","):
        if name:
            yield f"reservation={name}"
    for qos in (fields.get("qos") or fields.get("default_qos", "")).split(","):
        if qos:
            yield f"qos={qos}"


def _obstacles(fields: Mapping[str, str], gpus: list[tuple[str, Tres]], kinds: set[str | None]) -> Iterator[str]:
    if not is_batch(fields):
        yield ONLY_BATCH
    if fields.get("het", "0") not in ("", "0"):
        yield "the job is heterogeneous"
    yield from _request_obstacles(fields, gpus, kinds)
    if max(number(fields, "min_nodes") or 1, number(fields, "max_nodes") or 1) > 1:
        yield "the job may use several nodes"
    if _task_count(fields) > 1:
        yield f"--ntasks={_task_count(fields)} tasks would divide one share"
    if fields.get("shared", "") == EXCLUSIVE:
        yield "--exclusive takes the whole node"
    for name, clause in _OPTIONS.items():
        if fields.get(name, "") not in ("", "0", "(null)"):
            yield clause
    if fields.get("script_options", "") in _SCRIPT_OPTIONS:
        yield _SCRIPT_OPTIONS[fields["script_options"]]
    if not _binding_is_implied(fields):
        yield "--gpu-bind needs a GPU of its own"


def _request_obstacles(
    fields: Mapping[str, str], gpus: list[tuple[str, Tres]], kinds: set[str | None]
) -> Iterator[str]:
    for _, resource in gpus:
        if resource.count is None:
            yield f"{resource.text} is not understood"
    if len(kinds) > 1:
        yield "several GPU types are named"
    if len({field for field, _ in gpus}) > 1:
        yield "GPUs are asked for in several places"
    shares = [resource for field in TRES_FIELDS for resource in _requested_tres(fields, field) if is_share(resource)]
    for share in shares:
        yield f"gres/{share.name} is already asked for"


def _binding_is_implied(fields: Mapping[str, str]) -> bool:
    """Return whether `--gpu-bind` is absent, or only what `--gpus-per-task` implies from 23.11 on."""
    binding = fields.get("tres_bind", "").replace("gres/", "gres:").removeprefix("gres:")
    return binding in ("", "(null)") or ("gpu" in fields.get("tres_per_task", "") and binding == "gpu:per_task:1")
