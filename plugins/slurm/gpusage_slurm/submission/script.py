"""A batch script: its `#SBATCH` lines as the fields that job_submit would see, and the obstacles in its commands.

As in sbatch, directives end at the first line that is neither blank nor a comment, and a later one wins.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

from gpusage_slurm.tres import parse_mib

PILOT_WORDS = (
    *("submitit.core._submit", "distributed.cli.dask_worker", "dask-worker", "dask worker", "process_worker_pool"),
    *(".psij/", "nxf_launch", "ray start", "jupyter", "ipengine", "ipcontroller", "wandb agent", "radical.pilot"),
    *("flux start", "hq worker", "prefect worker", "celery", "work_queue_worker", "torchx"),
)
"""Words of the scripts by which programs run tasks of their own in a job: they report a failure to their masters before
Slurm knows of it (submitit, psij, Nextflow), or outlive it (dask, parsl, Ray). gpusage_request.lua has them, too."""
DEV_NULL = "/dev/null"
MAXIMUM_BYTES = 256 * 1024
"""Of a script that is looked through: slurmctld waits meanwhile."""

_DIRECTIVE = re.compile(r"#SBATCH[ \t]+(.*)")
_WORDS = re.compile(r"#GPUSAGE[ \t]+(.*)")
_COUNT = re.compile(r"[0-9]{1,9}")
_AMOUNT = re.compile(r"[0-9]{1,9}[KMGT]?", re.IGNORECASE)  # sbatch takes no fraction
# A directive may end in a comma, since the texts of several are joined by commas.
_TAIL = f"{string.whitespace},"
_HEAD_CHARACTERS = 16 * 1024
"""Of a script: where its lines `#GPUSAGE` stand. gpusage_request.lua reads as much."""
# Slurm takes an option by any beginning that is unique.
_CPUS_PER_GPU = re.compile(r"--cpus-per-g|SLURM_CPUS_PER_GPU")
_HET = ("hetjob", "packjob")
_REQUEUE = MappingProxyType({"requeue": "1", "no-requeue": "0"})
_SHORT_AND_LONG = (
    "-J=job-name -A=account -N=nodes -n=ntasks -G=gpus -C=constraint -p=partition -w=nodelist -x=exclude -D=chdir "
    "-q=qos -c=cpus-per-task -B=extra-node-info -o=output -e=error"
)
_SHORT = MappingProxyType(dict(pair.split("=") for pair in _SHORT_AND_LONG.split()))
# Options whose fields have their names.
_SAME_NAME = (
    *("comment", "account", "export", "prefer", "partition", "reservation", "qos", "deadline", "tres-bind"),
    *("tres-per-task", "cpus-per-task", "sockets-per-node", "cores-per-socket", "threads-per-core"),
)
_PLAIN = MappingProxyType(
    {
        **{name: name.replace("-", "_") for name in _SAME_NAME},
        "job-name": "name",
        "chdir": "work_dir",
        "workdir": "work_dir",
        "constraint": "features",
        "nodelist": "req_nodes",
        "exclude": "exc_nodes",
        "ntasks": "num_tasks",
        "gpu-freq": "tres_freq",
        "gpu-bind": "tres_bind",
        "ntasks-per-gpu": "ntasks_per_tres",
        "mincpus": "pn_min_cpus",
        "tmp": "pn_min_tmp_disk",
        "extra-node-info": "cores_per_socket",
    }
)
_MEMORY = MappingProxyType({"mem": "min_mem_per_node", "mem-per-cpu": "min_mem_per_cpu", "mem-per-gpu": "mem_per_tres"})
_GPUS = MappingProxyType(
    {
        "gpus": "tres_per_job",
        "gpus-per-node": "tres_per_node",
        "gpus-per-socket": "tres_per_socket",
        "gpus-per-task": "tres_per_task",
        "cpus-per-gpu": "cpus_per_tres",
    }
)


def why_unrepeatable(script: str, *, requeue: str = "", output: str = "", errors: str = "") -> str:
    """Return why a job cannot be requeued unnoticed, one word; ``""`` if its task epilog can do so.

    Args:
        script: The text of its batch script.
        requeue: ``0`` where Slurm must not requeue it.
        output: Where its output goes; ``""`` for Slurm's own choice.
        errors: The same of its standard error; ``""`` for its output.
    """
    # The same order as in gpusage_request.lua, whose reason gpusaged sees of a job that is submitted.
    if requeue == "0":
        return "no-requeue"

    # The task epilog finds CUDA's error in what the job wrote.
    if output == DEV_NULL and errors in ("", DEV_NULL):
        return "output"
    if len(script.encode("utf-8", "replace")) > MAXIMUM_BYTES:
        return "unread"
    return "master" if any(word in script for word in PILOT_WORDS) else ""


def read_script(text: str) -> dict[str, str]:
    """Return the fields that the directives of *text* set, by job_submit's names; other options are left out."""
    fields = {
        "script": "1",
        "het": "0",
        "script_options": incompatible_srun_option(text),
        "script_comment": gpusage_directives(text),
        "shows_model": "1",
    }
    options: dict[str, str] = {}
    for name, value in read_directives(text):
        if name in _HET:
            fields["het"] = "1"
        elif name in _REQUEUE:
            options["requeue"] = _REQUEUE[name]
        else:
            options[name] = value

    for name, value in options.items():
        for key, converted in _field(name, value):
            # --gres and --gpus-per-node are one field, and add up.
            fields[key] = f"{fields[key]},{converted}" if key.startswith("tres_per") and key in fields else converted
    output, errors = options.get("output", ""), options.get("error", "")
    fields["unrepeatable"] = why_unrepeatable(text, requeue=options.get("requeue", ""), output=output, errors=errors)

    tasks, nodes = options.get("ntasks-per-node", ""), fields.get("min_nodes", "1")
    if "num_tasks" not in fields and _COUNT.fullmatch(tasks) and _COUNT.fullmatch(nodes):
        fields["num_tasks"] = str(int(tasks) * int(nodes))  # as sbatch counts them
    return fields


def run_record(text: str, folder: str, arguments: Sequence[str] = ()) -> str:
    """Return the name of the record of a run of the script *text*, as gpusage_cli.lua does; empty if it has none.

    Args:
        text: Of the script.
        folder: Of its ``--chdir``, empty without one: sbatch then names the folder in which it was called.
        arguments: Behind the script's name.
    """
    content = text.encode("utf-8", "replace")
    if not 0 < len(content) < _HEAD_CHARACTERS:
        return ""

    # Two polynomials, each modulo a prime; gpusage_request.lua's `digest` computes the same in doubles.
    one, other = 7, 11
    for byte in b"\0".join([content, *map(os.fsencode, (*arguments, str(Path.cwd() / folder)))]):
        one, other = (one * 65599 + byte) % 2147483647, (other * 31337 + byte) % 4294967291
    return f"{one:010}{other:010}"


def gpusage_directives(text: str) -> str:
    """Return the texts of the ``#GPUSAGE ...`` lines of *text*, joined by commas; they end where `#SBATCH` lines do."""
    words = []
    for line in text[:_HEAD_CHARACTERS].splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        match = _WORDS.fullmatch(line)
        if match:
            words.append(match[1].rstrip(_TAIL))

    return ",".join(filter(None, words))


def incompatible_srun_option(text: str) -> str:
    """Return the option in the srun lines of *text* that does not work with a share, as gpusage_request.lua does."""
    if len(text.encode("utf-8", "replace")) > MAXIMUM_BYTES:
        return "unread"
    return "cpus-per-gpu" if _CPUS_PER_GPU.search(text) else ""


def read_directives(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each option, long names throughout; an option without a value has the value ``""``."""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return
        directive = _DIRECTIVE.match(line)
        if directive:
            try:
                words = shlex.split(directive[1], comments=True)
            except ValueError:  # an open quote: sbatch will refuse it
                words = directive[1].split()
            yield from _options(words)


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(words):
        word, position = words[position], position + 1
        name, separator, value = word.partition("=")
        if word in _HET:
            yield word, ""
            continue

        # A short option has its value behind it, with or without a sign: -n4, -n=4, -n 4.
        if word[:2] in _SHORT and not word.startswith("--"):
            name, separator, value = "--" + _SHORT[word[:2]], word[2:], word[2:].removeprefix("=")
        if not name.startswith("--"):
            continue
        if not separator and position < len(words) and not words[position].startswith("-"):
            value, position = words[position], position + 1
        yield name[2:], value


def _field(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of job_submit that the option *name* sets."""
    if name == "nodes":
        least, _, most = value.partition("-")
        yield "min_nodes", least
        yield "max_nodes", most or least
    elif name == "exclusive":
        if not value:  # --exclusive=user keeps other users off, and takes no whole node
            yield "shared", "0"
    elif name == "gres":
        yield "tres_per_node", _with_gres_prefix(value, "gres:")
    elif name in _GPUS:
        yield _GPUS[name], _with_gres_prefix(value, "gres:gpu:")

    # Whole MiB of ``32G``, as job_submit sees them; empty where it is no amount, which sbatch will say.
    elif name in _MEMORY:
        mib = parse_mib(value) if _AMOUNT.fullmatch(value) else None
        prefix = "gres:gpu:" if name == "mem-per-gpu" else ""
        yield _MEMORY[name], "" if mib is None else f"{prefix}{math.ceil(mib)}"
    elif name in _PLAIN:
        yield _PLAIN[name], value


def _with_gres_prefix(value: str, prefix: str) -> str:
    """Return each word of a comma-separated list with *prefix*, where it has no ``gres`` of its own yet."""
    words = [word.strip() for word in value.split(",") if word.strip() not in ("", "none")]
    return ",".join(word if re.match(r"gres[:/]", word) else prefix + word for word in words)
