"""Checks of what runs on a compute node: the scripts are named, can be run, and root's are root's own."""

from __future__ import annotations

import os
from pathlib import Path

from gpusage.cli.admin import Finding, failed, passed, warned
from gpusage_slurm.doctor.evidence import Evidence, read_or_empty
from gpusage_slurm.install.node_scripts import (
    EPILOG,
    PROLOG,
    SCRIPTS,
    TASK_PROLOG,
    missing_scripts,
    names_packaged_file,
    path_not_owned_by_root,
    prolog_runs_in_job,
    script_path,
)


def task_prolog(evidence: Evidence) -> Finding:
    """Check the task prolog."""
    name = "task prolog"
    script = script_path(evidence.settings, TASK_PROLOG)
    if script is None:
        used = evidence.settings.get("taskprolog") or "(none)"
        return failed(name, f"TaskProlog={used}", "gpusage slurm install --yes, then scontrol reconfigure")
    return _executable(name, script)


def node_prolog(evidence: Evidence) -> Finding:
    """Check the prolog and the epilog, which run as root."""
    name = "node prolog"
    lacking = [script.key for script in (PROLOG, EPILOG) if script in missing_scripts(evidence.settings)]
    if lacking:
        observation = f"{' and '.join(lacking)} without gpusage: nothing holds a job to its share, so no GPU is shared"
        verdict = failed if evidence.own.configuration.mode == "enforce" else warned
        return verdict(name, observation, "gpusage slurm install --yes, then scontrol reconfigure")
    if prolog_runs_in_job(evidence.settings):
        observation = "PrologFlags=RunInJob: an MPS daemon would end with the job that began it, so no GPU is shared"
        return warned(name, observation, "take RunInJob out of PrologFlags, then scontrol reconfigure")
    scripts = [str(script_path(evidence.settings, script)) for script in (PROLOG, EPILOG)]
    runnable = _executable(name, *scripts)
    if runnable.verdict == "fail" or not evidence.settings.get("slurmduser", "").startswith("root"):
        return runnable
    others = next(filter(None, (path_not_owned_by_root(Path(script).resolve()) for script in scripts)), None)
    if others is None:
        return runnable
    observation = f"{others} may be changed by others than root, and slurmd runs what lies there as root"
    return warned(name, observation, "install gpusage where only root may write, /opt/gpusage for example")


def outside_package(evidence: Evidence) -> Finding:
    """Check that Slurm runs nothing inside gpusage's Python package, as what early versions wrote does."""
    name = "upgrades"
    texts = {script: evidence.scripts.get(script, "") for script in ("job_submit.lua", "cli_filter.lua")}
    for path in (script_path(evidence.settings, script) for script in SCRIPTS):
        if path:
            texts[path] = f"{path}\n{read_or_empty(Path(path))}"
    inside = [place for place, text in texts.items() if names_packaged_file(text)]
    if not inside:
        return passed(name, "Slurm runs copies, which no upgrade of gpusage takes away")
    observation = (
        f"{', '.join(inside)} names a file inside gpusage's Python package: while that is replaced, Slurm drains nodes "
        "and fails tasks"
    )
    todo = "on each node gpusage slurm install --node --yes; then gpusage slurm install --nodes-ready --yes, scontrol "
    return warned(name, observation, f"{todo}reconfigure")


def job_container(evidence: Evidence) -> Finding:
    """Check whether jobs see the folder by which CUDA's processes may meet; nobody has tried MPS without it."""
    name, kind = "job containers", evidence.settings.get("jobcontainertype", "")
    if not kind.endswith("tmpfs"):
        return passed(name, "jobs see the node's own /dev/shm")
    observation = f"JobContainerType={kind} may give each job a /dev/shm of its own; MPS was never tried with that"
    return warned(name, observation, "leave /dev/shm out of Dirs= in job_container.conf, and try a share by hand first")


def sampler(evidence: Evidence) -> Finding:
    """Check the Python that samples the usage of jobs."""
    name = "sampler"
    if evidence.sampler:
        return passed(name, evidence.sampler)
    observation = "no Python with gpusage samples jobs here: if this host is a node, nobody knows what they really did"
    todo = "install gpusage at the same path on every node; where slurm.conf names other copies of our scripts, "
    return warned(name, observation, f"{todo}write them again: gpusage slurm install --node")


def _executable(name: str, *scripts: str) -> Finding:
    for script in scripts:
        if not os.access(script, os.X_OK):
            return failed(name, f"{script} is not executable here", "install gpusage at the same path on every node")
    return passed(name, ", ".join(scripts))
