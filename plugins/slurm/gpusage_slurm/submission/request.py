"""A Slurm submission -> Job: its GPU request, the obstacles to a share, and why no card came with it.

A GPU request stands in one of four places: per node (`--gres`, `--gpus-per-node`), per job (`--gpus`), per socket
(`--gpus-per-socket`) and per task (`--gpus-per-task`, `--tres-per-task`). All four are read. A malformed resource
is an obstacle, not an error: Slurm itself tells the user.

gpusaged answers jobs that are equal in all fields that were read without a second decision. So a field that matters to
few jobs is read only where it matters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpusage.graphs.card.error import ERROR_MARK, decode_error
from gpusage_hooks.comment import MODEL_NAMES, is_model_path, parse_comment, parse_first_run, parse_learn
from gpusage_hooks.types import OF_USER, DecisionRequest, GpuRequest, Job, Submitter
from gpusage_hooks.units import MIB
from gpusage_slurm.submission.deadline import seconds_left
from gpusage_slurm.submission.script import read_script, run_record
from gpusage_slurm.tres import Tres, is_gpu, is_share, parse_tres

TRES_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task")
_CHANNELS = ("comment", "variable_comment", "script_comment")
"""Where a user's words to us stand, the first that says something first."""
_EXCLUSIVE = "0"
"""JOB_SHARED_NONE of slurm.h."""
FIELD_BYTES = 1024
"""slurmctld's limit on a field that a plugin leaves behind (`_test_strlen` in its job_mgr.c)."""

FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=-]*")
PLAIN_CONSTRAINT = re.compile(rf"{FEATURE.pattern}(?:(?:&{FEATURE.pattern})*|(?:\|{FEATURE.pattern})*)")
"""Names joined all by ``&`` or all by ``|``."""
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""A node's name, as no list with ranges is."""
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")

_MAXIMUM_CARD_CHARACTERS = 64 * 1024
_MAXIMUM_LIST_CHARACTERS = 256
_TOO_LONG = Tres(
    text=f"a list of more than {_MAXIMUM_LIST_CHARACTERS} characters", name="gpu", generic=True, count=None
)
_MOST_EXCLUDED = 8
"""Names that a user may exclude and more be added: slurmctld takes `FIELD_BYTES`."""
_NODE_TIES = (
    *("prefer", "req_nodes", "reservation", "pn_min_tmp_disk"),
    *("sockets_per_node", "cores_per_socket", "threads_per_core"),
)
"""What a job may ask of its nodes that no description of a cluster has, and a preference, which no constraint joins."""
_OPTIONS = {
    "cpus_per_tres": "--cpus-per-gpu counts whole GPUs",
    "mem_per_tres": "--mem-per-gpu counts whole GPUs",
    "ntasks_per_tres": "--ntasks-per-gpu counts whole GPUs",
    "tres_freq": "--gpu-freq needs a GPU of its own",
}
_SCRIPT_OPTIONS = {
    "cpus-per-gpu": "its script or environment has --cpus-per-gpu for an srun, which counts whole GPUs",
    "unread": "its script is too long to look for srun lines that need a whole GPU",
}

_ONLY_BATCH = "only batch jobs are changed, not srun or salloc"
_NO_CARD = (
    "no description of the model came with the job: its script came through a pipe, it came from another client than "
    "sbatch, or the host of the submission has no gpusage in its cli_filter.lua"
)
_CAVEAT = (
    "--export={}: where the Lua of the submission's host has no luaposix (`gpusage slurm doctor` tells), "
    "the description of the model stays behind, and the request is kept"
)
_LEFT_BEHIND = (
    "--export={} left the description of the model behind, because the Lua of the submission's host has no luaposix"
)
_STATUS = re.compile(rf"{ERROR_MARK}([0-9]{{1,3}}|unknown)")
"""How `gpusage job-card` ended where it gave neither a card nor a reason; no encoded sentence is of this length."""
_MISSING = "the host of the submission has no gpusage where its cli_filter.lua looks for it"
_SLOW = "describing the model took longer than slurm.card_limit_s allows"
# timeout(1) ends with 124, or 137 where it had to kill; a shell with 126 and 127 where it cannot start the command.
_ENDINGS = {"124": _SLOW, "137": _SLOW, "126": _MISSING, "127": _MISSING}
_ENDED = "gpusage job-card on the host of the submission ended with status {}"


def parse_submission(submission: DecisionRequest, model_names: Sequence[str] = MODEL_NAMES) -> Job:
    """Parse the fields of job_submit, or the `#SBATCH` lines of a script.

    Args:
        submission: Of Slurm.
        model_names: How models are named here, `Context.model_names`.

    Raises:
        RequestError: The comment is addressed to us and malformed, or its deadline is over.
    """
    script = submission.script
    offline = {"variable_comment": submission.comment, **read_script(script)} if script else {}
    fields = {**offline, **submission.fields} if script else submission.fields

    texts = [*filter(None, map(fields.get, _CHANNELS))]
    model_request = next(filter(None, (parse_comment(text, model_names) for text in texts)), None)
    path = model_request.model if model_request and is_model_path(model_request.model, model_names) else ""
    if model_request is not None and path and not path.startswith(("~", "/")):
        # sbatch resolves a path from --chdir, too. Jobs that name none share their answer, whatever folder they are in.
        whole = os.path.join(fields.get("work_dir", ""), path)  # noqa: PTH118 - any text
        model_request = replace(model_request, model=whole)

    # An error in the card's place begins with a mark that no card has.
    card = fields.get("card", "")
    fits = 0 < len(card) <= _MAXIMUM_CARD_CHARACTERS and not card.startswith(ERROR_MARK)
    is_recorded = bool(script) and _learn_switch(fields) is not False
    return Job(
        submission=replace(submission, fields=fields) if script else submission,
        request=read_request(fields),
        request_text=describe_request(fields),
        model_request=model_request,
        card=card if fits else None,
        card_trouble=None if fits else _missing_card_reason(fields),
        submitter=Submitter(fields=fields, user_field="user_id", job_name_field="name"),
        dry_run=fields.get("dry_run") == "1",
        first_run=None if model_request else next(filter(None, map(parse_first_run, texts)), None),
        shows_model=fields.get("shows_model") == "1" and bool(_learn_switch(fields)),
        run_record=run_record(script or "", fields.get("work_dir", ""), submission.arguments) if is_recorded else "",
        caveat=_CAVEAT.format(fields["export"]) if script and not _exports_all(fields) else None,
    )


def _learn_switch(fields: Mapping[str, str]) -> bool | None:
    """Return whether the user's words are ``learn=on`` or ``learn=off``; a site may observe jobs that say nothing."""
    switches = (parse_learn(fields.get(channel, "")) for channel in _CHANNELS)
    return next((switch for switch in switches if switch is not None), None)


def _missing_card_reason(fields: Mapping[str, str]) -> str | None:
    """Return why the job that job_submit saw brings no card; ``None`` where it is no batch job, which never does."""
    reason = decode_missing_card_reason(fields.get("card", ""))
    if reason or not _is_batch(fields):
        return reason
    return _NO_CARD if _exports_all(fields) else _LEFT_BEHIND.format(fields["export"])


def decode_missing_card_reason(card: str) -> str | None:
    """Return the reason that travels in a card's place, as a sentence; ``None`` where none does."""
    ended = _STATUS.fullmatch(card)
    return _ENDINGS.get(ended[1], _ENDED.format(ended[1])) if ended else decode_error(card)


def _is_batch(fields: Mapping[str, str]) -> bool:
    return fields.get("script", "1") == "1"


def _exports_all(fields: Mapping[str, str]) -> bool:
    """Return whether the job takes the whole environment with it, which carries a card in any case."""
    return fields.get("export", "").partition(",")[0] in ("", "ALL")


def read_request(fields: Mapping[str, str]) -> GpuRequest:
    """Return the request of *fields*: the GPUs of the whole job, their type, and obstacles to a share."""
    requested = _requested_tres(fields)
    gpus = [(field, resource) for field, resource in requested if is_gpu(resource)]
    kinds = {resource.kind for _, resource in gpus}
    gpu_count = _gpu_count(fields, gpus)

    cpu_count = max(_number(fields, name) or 1 for name in ("min_cpus", "pn_min_cpus", "cpus_per_task"))

    # job_submit has the memory in MiB, of the node or of each core.
    node_mib, cpu_mib = _number(fields, "min_mem_per_node") or 0, _number(fields, "min_mem_per_cpu") or 0
    deadline = fields.get("deadline", "")

    # slurmctld refuses a job that none of its nodes could ever run, and one that waits for a node outside its
    # reservation waits for ever. So a job is bound to GPU types only where nothing unknown to us ties it to nodes.
    constraint, excludes = fields.get("features", ""), fields.get("exc_nodes", "")
    is_free = (
        all(is_gpu(resource) for _, resource in requested if resource.generic)
        and not any(fields.get(name) for name in _NODE_TIES)
        and (not constraint or bool(feature_groups(constraint)))
    )
    names = tuple(excludes.split(","))
    excluded = names if all(map(_NODE_NAME.fullmatch, names)) and len(names) <= _MOST_EXCLUDED else ()

    reservations = (f"reservation={name}" for name in fields.get("reservation", "").split(",") if name)

    # Of an association with several QOS and no default slurmctld takes `normal`. Without accounts nobody's user counts:
    # jobs of all users share an answer then.
    qos = (fields.get("qos") or fields.get("default_qos") or "normal").split(",")
    account = fields.get("account") or fields.get("default_account", "")
    accounts = (f"account={account}", *([f"account={account}{OF_USER}{fields.get('user_id', '')}"] if account else []))
    request = GpuRequest(
        gpu_count=gpu_count,
        gpu_type=next(iter(kinds)) if len(kinds) == 1 else None,
        obstacles=tuple(_obstacles(fields, requested, gpu_count)) if gpu_count or gpus else (),
        partitions=tuple(name for name in fields.get("partition", "").split(",") if name),
        scopes=(*reservations, *(f"qos={name}" for name in qos if name), *accounts),
        # Slurm tries the job's own preference in place of its constraint, so then that confines nothing.
        node_features=() if fields.get("prefer") else feature_groups(constraint),
        cpu_count=cpu_count,
        host_memory_bytes=max(node_mib, cpu_mib * cpu_count) * MIB,
        task_count=_array_task_count(fields.get("array_inx", "")),
        bindable=is_free and not excludes,
        deadline_s=seconds_left(deadline, datetime.now()) if deadline else None,  # noqa: DTZ005 - Slurm's are local
        avoided_nodes=excluded,
        # More names can be excluded for a job whose user excludes none, or a plain list of them.
        steerable=is_free and (bool(excluded) or not excludes),
        repeatable=not fields.get("unrepeatable"),
    )
    return request if gpu_count <= 1 else _on_nodes(request, fields, gpus)


def _on_nodes(request: GpuRequest, fields: Mapping[str, str], gpus: list[tuple[str, Tres]]) -> GpuRequest:
    """Return *request*, of several GPUs, with what it asks of each of its nodes.

    Where it is open how its GPUs are spread, a node is to have the cores and the memory of at least one.
    """
    node_count = max(_number(fields, "min_nodes") or 1, 1)
    is_spread = all(field != "tres_per_node" for field, _ in gpus) and _number(fields, "max_nodes") != node_count
    most_on_node = 1 if is_spread else -(-request.gpu_count // node_count)
    tasks = max(_task_count(fields), request.gpu_count * (_number(fields, "ntasks_per_tres") or 0))

    # Options for each GPU: ``gres:gpu:4``.
    cpus_per_gpu, mib_per_gpu = (
        sum(each.count or 0 for each in parse_tres(fields.get(name, "")) if is_gpu(each))
        for name in ("cpus_per_tres", "mem_per_tres")
    )
    per_node = 0 if _number(fields, "num_tasks") else _number(fields, "ntasks_per_node") or 0
    node_tasks = -(-tasks // (request.gpu_count if is_spread and not per_node else node_count))
    task_cpus = (_number(fields, "cpus_per_task") or 1) * node_tasks
    cpu_count = max(
        1 if is_spread else -(-(_number(fields, "min_cpus") or 1) // node_count),
        _number(fields, "pn_min_cpus") or 1,
        task_cpus,
        cpus_per_gpu * most_on_node,
    )
    cpu_mib = _number(fields, "min_mem_per_cpu") or 0
    mib = (_number(fields, "min_mem_per_node") or 0, cpu_mib * cpu_count, mib_per_gpu * most_on_node)

    # What each GPU of them brings with it; one task is on one node.
    gpu_cpus = max(cpus_per_gpu, task_cpus if tasks > 1 and not per_node else 0) if is_spread else 0
    return replace(
        request,
        node_count=0 if is_spread and not _number(fields, "min_nodes") else node_count,
        node_gpu_count=most_on_node,
        cpu_count=cpu_count,
        host_memory_bytes=max(mib) * MIB,
        gpu_cpu_count=gpu_cpus,
        gpu_host_bytes=max(cpu_mib * gpu_cpus, mib_per_gpu) * MIB if is_spread else 0,
    )


def describe_request(fields: Mapping[str, str]) -> str:
    """Return the GPU request in Slurm's newer spelling, for people: ``gres/gpu:v100:1``, ``gres/gpu:2 per task``."""
    words, gpus = [], []
    for field, resource in _requested_tres(fields):
        if is_gpu(resource) or is_share(resource):
            kind = "" if resource.kind is None else f":{resource.kind}"
            count = "?" if resource.count is None else resource.count
            place = "" if field == "tres_per_node" else f" per {field.rpartition('_')[2]}"
            words.append(f"gres/{resource.name}{kind}:{count}{place}")
        if is_gpu(resource):
            gpus.append((field, resource))

    # One GPU in all is one GPU, wherever the request stands.
    if len(words) == 1 and _gpu_count(fields, gpus) <= 1:
        words = [words[0].partition(" ")[0]]
    return ", ".join(words) or "no GPU"


def feature_groups(constraint: str) -> tuple[tuple[str, ...], ...]:
    """Return groups of features: a node must have all features of a group. Empty if *constraint* is not plain."""
    constraint = constraint.strip()
    plain = len(constraint) <= FIELD_BYTES and PLAIN_CONSTRAINT.fullmatch(constraint)
    return tuple(tuple(group.split("&")) for group in constraint.split("|")) if plain else ()


def _requested_tres(fields: Mapping[str, str]) -> list[tuple[str, Tres]]:
    """Return each requested resource with its field."""
    requested = []
    for field in TRES_FIELDS:
        text = fields.get(field, "")

        # A list longer than people write is not parsed, which would take slurmctld's time.
        items = parse_tres(text) if len(text) <= _MAXIMUM_LIST_CHARACTERS else (_TOO_LONG,)
        requested += [(field, item) for item in items]
    return requested


def _gpu_count(fields: Mapping[str, str], gpus: list[tuple[str, Tres]]) -> int:
    """Return the GPUs of *gpus* over all nodes, sockets or tasks of the job: the most that any of the fields has."""
    nodes = max(_number(fields, "min_nodes") or 1, 1)

    # A request counts per node, job, socket or task; GPUs are those of the whole job.
    times = {
        "tres_per_node": nodes,
        "tres_per_job": 1,
        "tres_per_socket": nodes * max(_number(fields, "sockets_per_node") or 1, 1),
        "tres_per_task": _task_count(fields),
    }

    counts = dict.fromkeys(TRES_FIELDS, 0)
    for field, resource in gpus:
        counts[field] += times[field] * (resource.count or 0)
    return max(counts.values())


def _task_count(fields: Mapping[str, str]) -> int:
    """Return how many tasks the job starts: with `--ntasks-per-node` alone, sbatch leaves it to slurmctld to count."""
    per_node, nodes = _number(fields, "ntasks_per_node"), _number(fields, "min_nodes") or 1
    return max(_number(fields, "num_tasks") or (per_node * nodes if per_node else 1), 1)


def _array_task_count(indices: str) -> int:
    """Return how many tasks of an array may run at once: ``0-9:3%2`` has 4, of which 2; 1 where *indices* are none."""
    listed, _, at_once = indices.partition("%")
    count = 0
    for match in map(_RANGE.fullmatch, listed.split(",")):
        if match:
            first, last, step = match.groups()
            count += (int(last or first) - int(first)) // max(int(step or 1), 1) + 1
    return max(min(count, int(at_once)) if at_once.isdigit() and int(at_once) else count, 1)


def _number(fields: Mapping[str, str], name: str) -> int | None:
    """Return the whole number in field *name*, ``None`` where it was not given or is none."""
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None  # uint32


def _obstacles(fields: Mapping[str, str], requested: list[tuple[str, Tres]], gpu_count: int) -> Iterator[str]:
    """Yield the reasons in the job's options for whole GPUs, as it wrote them."""
    if not _is_batch(fields):
        yield _ONLY_BATCH
    if fields.get("het", "0") not in ("", "0"):
        yield "the job is heterogeneous"
    yield from _request_obstacles(requested)

    if gpu_count > 1:  # they stay whole, so that only what leaves their number open counts
        most = _number(fields, "max_nodes") or -(-_task_count(fields) // (_number(fields, "ntasks_per_node") or 1))
        if most > (_number(fields, "min_nodes") or 1) and any(field == "tres_per_node" for field, _ in requested):
            yield "it may get more nodes, and so more GPUs: write --nodes"
        return
    if max(_number(fields, "min_nodes") or 1, _number(fields, "max_nodes") or 1) > 1:
        yield "the job may use several nodes"
    if _task_count(fields) > 1:
        yield f"--ntasks={_task_count(fields)} tasks would divide one share"
    if fields.get("shared", "") == _EXCLUSIVE:
        yield "--exclusive takes the whole node"
    yield from (clause for name, clause in _OPTIONS.items() if fields.get(name, "") not in ("", "0", "(null)"))
    if fields.get("script_options", "") in _SCRIPT_OPTIONS:
        yield _SCRIPT_OPTIONS[fields["script_options"]]

    # From 23.11 on --gpus-per-task implies a binding, which goes when the share comes.
    binding = fields.get("tres_bind", "").replace("gres/", "gres:").removeprefix("gres:")
    is_implied = "gpu" in fields.get("tres_per_task", "") and binding == "gpu:per_task:1"
    if binding not in ("", "(null)") and not is_implied:
        yield "--gpu-bind needs a GPU of its own"


def _request_obstacles(requested: list[tuple[str, Tres]]) -> Iterator[str]:
    """Yield the reasons in the GPU request itself, where it is not a single whole GPU."""
    places, kinds, shares = set(), set(), []
    for field, resource in requested:
        if is_share(resource):
            shares.append(resource.name)
        if is_gpu(resource):
            places.add(field)
            kinds.add(resource.kind)
            if resource.count is None:
                yield f"{resource.text} is not understood"

    if len(kinds) > 1:
        yield "several GPU types are named"
    if len(places) > 1:
        yield "GPUs are asked for in several places"
    yield from (f"gres/{name} is already asked for" for name in shares)
