"""Checks of what runs on a compute node: the scripts are named, can be run, and root's are root's own."""

from __future__ import annotations

import os
from pathlib import Path

from gpusage.cli.findings import Finding, failed, passed, warned
from gpusage_slurm.doctor.evidence import Evidence
from gpusage_slurm.installing.node_side import (
    EPILOG,
    PROLOG,
    TASK_PROLOG,
    ends_with_job,
    missing,
    named,
    not_roots_own,
)


def task_prolog(evidence: Evidence) -> Finding:
    """Check what runs before each task."""
    name = "task prolog"
    script = named(evidence.settings, TASK_PROLOG)
    if script is None:
        used = evidence.settings.get("taskprolog") or "(none)"
        return failed(name, f"TaskProlog={used}", "gpusage slurm install --yes, then scontrol reconfigure")
    return _executable(name, script)


def node_prolog(evidence: Evidence) -> Finding:
    """Check what runs as root before and after each job."""
    name = "node prolog"
    lacking = [script.key for script in (PROLOG, EPILOG) if script in missing(evidence.settings)]
    if lacking:
        observation = f"{' and '.join(lacking)} without gpusage: nothing holds a job to its share, so no GPU is shared"
        verdict = failed if evidence.own.configuration.mode == "enforce" else warned
        return verdict(name, observation, "gpusage slurm install --yes, then scontrol reconfigure")
    if ends_with_job(evidence.settings):
        observation = "PrologFlags=RunInJob: an MPS daemon would end with the job that began it, so no GPU is shared"
        return warned(name, observation, "take RunInJob out of PrologFlags, then scontrol reconfigure")
    scripts = [str(named(evidence.settings, script)) for script in (PROLOG, EPILOG)]
    runnable = _executable(name, *scripts)
    if runnable.verdict == "fail" or not evidence.settings.get("slurmduser", "").startswith("root"):
        return runnable
    others = next(filter(None, (not_roots_own(Path(script).resolve()) for script in scripts)), None)
    if others is None:
        return runnable
    observation = f"{others} may be changed by others than root, and slurmd runs what lies there as root"
    return warned(name, observation, "install gpusage where only root may write, /opt/gpusage for example")


def job_container(evidence: Evidence) -> Finding:
    """Check whether jobs see the folder by which CUDA's processes may meet; nobody has tried MPS without it."""
    name, kind = "job containers", evidence.settings.get("jobcontainertype", "")
    if not kind.endswith("tmpfs"):
        return passed(name, "jobs see the node's own /dev/shm")
    observation = f"JobContainerType={kind} may give each job a /dev/shm of its own; MPS was never tried with that"
    return warned(name, observation, "leave /dev/shm out of Dirs= in job_container.conf, and try a share by hand first")


def sampler(evidence: Evidence) -> Finding:
    """Check what tells what jobs really did."""
    name = "sampler"
    if evidence.sampler:
        return passed(name, evidence.sampler)
    observation = "no Python with gpusage samples jobs here: if this host is a node, nobody knows what they really did"
    todo = "install gpusage at the same path on every node; where slurm.conf names other copies of our scripts, "
    return warned(name, observation, f"{todo}write them anew: gpusage slurm install --node")


def _executable(name: str, *scripts: str) -> Finding:
    for script in scripts:
        if not os.access(script, os.X_OK):
            return failed(name, f"{script} is not executable here", "install gpusage at the same path on every node")
    return passed(name, ", ".join(scripts))
