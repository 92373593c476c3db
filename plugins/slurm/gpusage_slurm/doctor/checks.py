"""The checks of `gpusage slurm doctor`: each reads the evidence, and names a fault and its remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from gpusage.cli.admin import (
    Finding,
    OwnEvidence,
    daemon_trouble,
    divisions,
    failed,
    kill_switch,
    passed,
    plugins,
    seen_enough,
    settings_file,
    skipped,
    store,
    warned,
)
from gpusage_slurm.cluster.observation import may_change_jobs
from gpusage_slurm.cluster.restrictions import books_gpus_twice
from gpusage_slurm.doctor import gpu_checks
from gpusage_slurm.doctor.evidence import Evidence, dry_run_crashes, is_vulnerable
from gpusage_slurm.install.lua_scripts import find_block
from gpusage_slurm.install.node_scripts import (
    EPILOG,
    PROLOG,
    TASK_EPILOG,
    TASK_PROLOG,
    missing_scripts,
    path_not_owned_by_root,
    prolog_runs_in_job,
    script_path,
)
from gpusage_slurm.install.slurm_conf import list_contains
from gpusage_slurm.settings import SlurmSettings

OLDEST_VERSION = (22, 5)
_RUN_AS = "systemctl edit gpusaged: [Service] and User= with SlurmUser's name; then systemctl restart gpusaged"
_INSTALL_AGAIN = "gpusage slurm install --yes, then scontrol reconfigure"
_TOLERATED_LATE = 0.05


def run_checks(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the finding of each check, in the order in which an admin should fix them.

    Checks of slurmctld's own settings are skipped where it does not answer.
    """
    own = evidence.own
    first = _slurmctld(evidence)
    ours = (
        settings_file(own),
        _daemon(own),
        _answer_times(own),
        _rewritten_jobs(evidence),
        store(own),
        seen_enough(own),
        plugins(own),
        kill_switch(own),
        *divisions(own),
    )

    if first.verdict == "fail":
        unknown = [skipped(name, "slurmctld does not answer", "fix slurmctld first") for name in _SLURM_CHECKS]
        return (first, *ours, *unknown)
    return (first, *(check(name, evidence) for name, check in _SLURM_CHECKS.items()), *ours)


def _slurmctld(evidence: Evidence) -> Finding:
    name = "slurmctld"
    if evidence.version is None or not evidence.settings:
        return failed(name, evidence.trouble, "start slurmctld, and run this where scontrol works")
    spelled = "{}.{:02}".format(*evidence.version)
    if evidence.version < OLDEST_VERSION:
        return failed(name, f"Slurm {spelled}", "gpusage needs Slurm 22.05 or newer")
    return passed(name, f"Slurm {spelled} answers")


def _daemon(own: OwnEvidence) -> Finding:
    name = "gpusaged"
    if own.status is None:
        return failed(name, own.status_trouble, "systemctl enable --now gpusaged (on the controller)")
    trouble = daemon_trouble(own.status, "slurm")
    if trouble:
        return warned(name, trouble, "see `gpusage slurm status`")
    return passed(name, f"answers at {own.socket}")


def _answer_times(own: OwnEvidence) -> Finding:
    name = "answers in time"
    if own.status is None:
        return warned(name, "unknown: gpusaged does not answer", "fix that first")

    # Of one job both sides may count the same silence, gpusaged as overdue and slurmctld as silent.
    lines, missed = own.status.get("lines", {}), own.status.get("missed", {})
    late, resting = max(lines.get("overdue", 0), missed.get("silent", 0)), missed.get("rest", 0)
    request_count = lines.get("requests", 0) + resting
    observation = f"of {request_count} jobs {late} had no answer in time, {resting} were not asked about after that"
    if late + resting > request_count * _TOLERATED_LATE:
        todo = (
            "give gpusaged more of this host's processors, or raise slurm.limit_ms and run gpusage slurm install --yes"
        )
        return warned(name, observation, todo)
    return passed(name, observation)


def _rewritten_jobs(evidence: Evidence) -> Finding:
    """Check the jobs with shares, and that gpusaged may change them."""
    name = "rewritten jobs"
    monitor = (evidence.own.status or {}).get("job_monitor", {})
    if monitor.get("error"):
        return warned(name, f"they cannot be checked: {monitor['error']}", "let gpusaged's user call squeue")

    # Shares are only bound and restored where gpusaged may change other users' jobs.
    helpless = evidence.own.configuration.mode == "enforce" and _may_change_no_job(evidence)
    if monitor.get("stuck"):
        todo = "cancel them, and submit them with gpusage=off in the comment"
        return warned(name, "; ".join(monitor["stuck"]), f"{todo}; {_RUN_AS}" if helpless else todo)
    if helpless:
        observation = (
            f"gpusaged runs as uid {evidence.daemon_uid}: no share binds a job to GPU types, and unless that is an "
            "operator, it can turn no stuck job back"
        )
        return warned(name, observation, _RUN_AS)
    return passed(name, f"none is stuck; {monitor.get('turned_back', 0)} restored")


def _may_change_no_job(evidence: Evidence) -> bool:
    """Return whether gpusaged runs as neither root nor SlurmUser, as far as can be known."""
    uid = evidence.daemon_uid
    return "slurmuser" in evidence.settings and uid is not None and not may_change_jobs(uid, evidence.settings)


def release(name: str, evidence: Evidence) -> Finding:
    """Check slurmctld's release against known problems."""
    running = evidence.settings.get("slurm_version", "of no known version")
    if dry_run_crashes(evidence.settings):
        observation = f"slurmctld {running} may crash when anybody tries `sbatch --test-only`, as our dry run does"
        return warned(name, observation, "update Slurm to 26.05.4 or newer; the dry run is left out till then")
    if books_gpus_twice(evidence.settings):
        newer = "update Slurm to 23.11.5 or newer"
        observation = f"slurmctld {running} may start a job with a whole GPU on a GPU that has shares, of whomever"
        if evidence.own.configuration.of_manager(SlurmSettings).accept_double_booking:
            return warned(name, observation, f"{newer}, or take slurm.accept_double_booking out")
        todo = f"{newer}, or accept it: [slurm] accept_double_booking = true"
        return evidence.unshared(name, f"{observation}: so no GPU is shared", todo)
    if is_vulnerable(evidence.settings):
        observation = f"slurmctld {running} may have vulnerabilities that 25.05.9, 25.11.8 and 26.05.4 fixed"
        return warned(name, observation, "update Slurm, unless your distribution says that it has fixed them")
    return passed(name, f"slurmctld {running}: no known problem")


def lua_script(key: str, script: str, name: str, evidence: Evidence) -> Finding:
    """Check that the Lua *script*, which setting *key* switches on, calls gpusage."""
    if find_block(evidence.scripts.get(script, "")) is None:
        return failed(name, f"{script} does not call gpusage", "gpusage slurm install --yes")
    used = evidence.settings.get(key, "")
    if evidence.settings and not list_contains(used, "lua"):
        return failed(name, f"slurmctld uses {key}={used or 'nothing'}", "scontrol reconfigure")
    return passed(name, f"{script} calls gpusage")


def current_installation(name: str, evidence: Evidence) -> Finding:
    """Check that the files at the site are as this version writes them."""
    if evidence.outdated is None:
        return failed(name, "slurm.conf or our settings cannot be read", "see the lines above")
    if evidence.outdated:
        observation = f"{', '.join(evidence.outdated)} would be written differently by this version and these settings"
        return warned(name, observation, _INSTALL_AGAIN)
    return passed(name, "as this version and these settings have it")


def lua_socket(name: str, evidence: Evidence) -> Finding:
    """Check that slurmctld's Lua has sockets."""
    # A dry run that reached gpusaged is a proof; the search of folders may miss a site's own path.
    if evidence.dry_run_arrived or "socket" in evidence.lua_modules:
        return passed(name, "slurmctld's Lua can ask the daemon")
    return failed(name, "no module 'socket' where Lua looks", "apt install lua-socket (on the controller)")


def lua_posix(name: str, evidence: Evidence) -> Finding:
    """Check that sbatch's Lua can set variables."""
    if "posix" in evidence.lua_modules:
        return passed(name, "models travel without touching --export")
    return warned(name, "no module 'posix' where Lua looks", "apt install lua-posix (on the login nodes)")


def task_prolog(name: str, evidence: Evidence) -> Finding:
    """Check the task prolog."""
    script = script_path(evidence.settings, TASK_PROLOG)
    if script is None:
        used = evidence.settings.get("taskprolog") or "(none)"
        return failed(name, f"TaskProlog={used}", _INSTALL_AGAIN)
    return _executable(name, script)


def node_prolog(name: str, evidence: Evidence) -> Finding:
    """Check the prolog and the epilog, which run as root."""
    lacking = [script.key for script in (PROLOG, EPILOG) if script in missing_scripts(evidence.settings)]
    if lacking:
        observation = f"{' and '.join(lacking)} without gpusage: nothing holds a job to its share, so no GPU is shared"
        return evidence.unshared(name, observation, _INSTALL_AGAIN)
    if prolog_runs_in_job(evidence.settings):
        observation = "PrologFlags=RunInJob: an MPS daemon would end with the job that began it, so no GPU is shared"
        return warned(name, observation, "take RunInJob out of PrologFlags, then scontrol reconfigure")

    scripts = [str(script_path(evidence.settings, script)) for script in (PROLOG, EPILOG)]
    runnable = _executable(name, *scripts)
    if runnable.verdict == "fail" or not evidence.settings.get("slurmduser", "").startswith("root"):
        return runnable

    # slurmd runs them as root, so nobody else may write them.
    others = next(filter(None, (path_not_owned_by_root(Path(script).resolve()) for script in scripts)), None)
    if others is None:
        return runnable
    observation = f"{others} may be changed by others than root, and slurmd runs what lies there as root"
    return warned(name, observation, "install gpusage where only root may write, /opt/gpusage for example")


def _executable(name: str, *scripts: str) -> Finding:
    for script in scripts:
        if not os.access(script, os.X_OK):
            return failed(name, f"{script} is not executable here", "install gpusage at the same path on every node")
    return passed(name, ", ".join(scripts))


def reruns(name: str, evidence: Evidence) -> Finding:
    """Check that a job which ran out of its share's memory runs again."""
    script = script_path(evidence.settings, TASK_EPILOG)
    only_certain = "only jobs whose need of memory is certain get a share"
    if script is None:
        used = evidence.settings.get("taskepilog") or "(none)"
        return warned(name, f"TaskEpilog={used}: no job runs again, and {only_certain}", _INSTALL_AGAIN)
    if evidence.settings.get("jobrequeue") == "0":
        return warned(
            name, f"JobRequeue=0: no job runs again, and {only_certain}", "JobRequeue=1, if jobs may run twice"
        )

    # No trial without a job tells whether a site lets users change their jobs, so real refusals are counted.
    runnable = _executable(name, script)
    refused = (evidence.own.status or {}).get("missed", {}).get("refused", 0)
    if refused and runnable.verdict == "pass":
        observation = f"the site's own job_submit refused {refused} times that a user changed Gres of a share"
        todo = "let slurm_job_modify pass Gres of one's own jobs, or set [sharing] rescue = false"
        return warned(name, f"{observation}: such a job cannot run again", todo)
    return runnable


def job_container(name: str, evidence: Evidence) -> Finding:
    """Check whether jobs see the folder by which CUDA's processes may meet; nobody has tried MPS without it."""
    kind = evidence.settings.get("jobcontainertype", "")
    if not kind.endswith("tmpfs"):
        return passed(name, "jobs see the node's own /dev/shm")
    observation = f"JobContainerType={kind} may give each job a /dev/shm of its own; MPS was never tried with that"
    return warned(name, observation, "leave /dev/shm out of Dirs= in job_container.conf, and try a share by hand first")


def sampler(name: str, evidence: Evidence) -> Finding:
    """Check the Python that samples the usage of jobs."""
    if evidence.sampler:
        return passed(name, evidence.sampler)
    observation = "no Python with gpusage samples jobs here: if this host is a node, nobody knows what they really did"
    todo = "install gpusage at the same path on every node; where slurm.conf names other copies of our scripts, "
    return warned(name, observation, f"{todo}write them again: gpusage slurm install --node")


def private_data(name: str, evidence: Evidence) -> Finding:
    """Check that slurmctld hides nothing from gpusaged that it needs."""
    hidden = evidence.settings.get("privatedata", "").lower().split(",")
    unseen = [word for word in ("jobs", "nodes", "partitions", "reservations") if word in hidden]
    if not unseen or not _may_change_no_job(evidence):
        return passed(name, "gpusaged sees jobs and nodes")
    observation = f"PrivateData hides {', '.join(unseen)} from gpusaged, which runs as uid {evidence.daemon_uid}"
    return warned(name, observation, _RUN_AS)


def dry_run(name: str, evidence: Evidence) -> Finding:
    """Check that a submission reaches gpusaged."""
    if dry_run_crashes(evidence.settings):
        return warned(name, "not tried: it could crash this slurmctld", "update Slurm to 26.05.4 or newer")
    if evidence.dry_run_arrived is None:
        return warned(name, "not tried: slurmctld or gpusaged does not answer", "fix these first")
    if not evidence.dry_run_arrived:
        todo = "scontrol reconfigure; then look for 'gpusage' in slurmctld's log"
        return failed(name, "`sbatch --test-only` did not reach gpusaged", todo)
    return passed(name, "`sbatch --test-only` reached gpusaged")


def pyslurm(name: str, evidence: Evidence) -> Finding:
    """Check that PySlurm, where it is installed, is of Slurm's version."""
    if evidence.pyslurm is None:
        return passed(name, "not installed; scontrol is read instead")
    if evidence.pyslurm != evidence.version:
        version = "PySlurm {}.{:02}".format(*evidence.pyslurm)
        return warned(name, f"{version} is not Slurm's version; scontrol is read instead", "install the matching one")
    return passed(name, "matches Slurm")


_SLURM_CHECKS: Mapping[str, Callable[[str, Evidence], Finding]] = MappingProxyType(
    {
        "release": release,
        "job_submit plugin": partial(lua_script, "jobsubmitplugins", "job_submit.lua"),
        "cli_filter plugin": partial(lua_script, "clifilterplugins", "cli_filter.lua"),
        "installation": current_installation,
        "LuaSocket": lua_socket,
        "luaposix": lua_posix,
        "task prolog": task_prolog,
        "node prolog": node_prolog,
        "task epilog": reruns,
        "job containers": job_container,
        "sampler": sampler,
        "gres/mps": gpu_checks.shares,
        "GPU types": gpu_checks.types,
        "memory limits": gpu_checks.memory_limits,
        "GPUs of this node": gpu_checks.node_gpus,
        "devices": gpu_checks.devices,
        "all_sharing": gpu_checks.all_sharing,
        "mps units": gpu_checks.untyped_units,
        "features": gpu_checks.features,
        "defaults per GPU": gpu_checks.per_gpu_defaults,
        "accounting": gpu_checks.accounting,
        "limits": gpu_checks.limits,
        "partitions": gpu_checks.enforced_partitions,
        "private data": private_data,
        "dry run": dry_run,
        "PySlurm": pyslurm,
    }
)
"""The checks that need slurmctld's answers, by the names that an admin sees."""
