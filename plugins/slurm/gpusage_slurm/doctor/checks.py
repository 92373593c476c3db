"""The checks of `gpusage slurm doctor` on the controller: each reads the evidence and says what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpusage.cli.doctor import OwnEvidence, daemon_trouble, divisions, kill_switch, plugins, settings_file, store
from gpusage.cli.findings import Finding, failed, passed, skipped, warned
from gpusage_hooks.types import GpuPool
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.observation import SETTING, billing_weights, ignores_unmet_preference, may_change_jobs
from gpusage_slurm.doctor.evidence import Evidence, dry_run_crashes, is_vulnerable
from gpusage_slurm.doctor.node_checks import job_container, node_prolog, outside_package, sampler, task_prolog
from gpusage_slurm.install.lua_scripts import find_block
from gpusage_slurm.install.plan import tracks_or_bills_mps, uses_slurmdbd
from gpusage_slurm.install.slurm_conf import list_contains

_GPU = re.compile(r"gres/gpu(:.+)?", re.IGNORECASE)
_MPS = "gres/mps"
_TOLERANCE = 0.01

_RUN_AS = "systemctl edit gpusaged: [Service] and User= with SlurmUser's name; then systemctl restart gpusaged"

_TOLERATED_LATE = 0.05
OLDEST_VERSION = (22, 5)
_TYPED_UNITS = re.compile(r"^\s*NodeName=[^#\n]*\bmps:[^:,\s#]+:\d", re.IGNORECASE | re.MULTILINE)


def wrong_weights(partitions: Sequence[scontrol.Line], pools: Sequence[GpuPool]) -> Iterator[str]:
    """Yield the weight to set for each partition that bills GPUs, but not shares in proportion.

    A GPU of several types is billed by its highest weight, for a share names no type.

    Args:
        partitions: As `scontrol show partitions` describes them.
        pools: The cluster's.
    """
    for partition in partitions:
        weights = billing_weights(partition)
        gpu = max((value for name, value in weights.items() if _GPU.fullmatch(name)), default=0.0)
        name = partition["PartitionName"]
        units = {pool.mps_per_gpu for pool in pools if name in (pool.partitions or (name,)) and pool.mps_per_gpu}
        if not gpu or not units:
            continue
        wanted = gpu / min(units)
        if abs(weights.get(_MPS, 0.0) - wanted) > _TOLERANCE * wanted:
            yield f"GRES/mps={wanted:g} in partition {name}"


def enforced_partitions(evidence: Evidence) -> Finding:
    """Check that the partitions of `enforce_in` exist."""
    name, configuration = "partitions", evidence.own.configuration
    if configuration.mode != "enforce" or not configuration.enforce_in:
        return passed(name, f"mode {configuration.mode} holds in all of them")
    there = {line["PartitionName"] for line in evidence.partitions}
    unknown = [each for each in configuration.enforce_in if each not in there]
    if unknown:
        observation = f"'enforce_in' names {', '.join(unknown)}, which slurmctld does not have"
        return warned(name, observation, "name partitions as `scontrol show partitions` does")
    return passed(name, f"mode enforce in {', '.join(configuration.enforce_in)}, observe in the others")


def private_data(evidence: Evidence) -> Finding:
    """Check that slurmctld hides nothing from gpusaged that it needs."""
    name, hidden = "private data", evidence.settings.get("privatedata", "").lower().split(",")
    unseen = [word for word in ("jobs", "nodes", "partitions", "reservations") if word in hidden]
    if not unseen or not _may_change_no_job(evidence):
        return passed(name, "gpusaged sees jobs and nodes")
    observation = f"PrivateData hides {', '.join(unseen)} from gpusaged, which runs as uid {evidence.daemon_uid}"
    return warned(name, observation, _RUN_AS)


def rewritten_jobs(evidence: Evidence) -> Finding:
    """Check the jobs with shares, and that gpusaged may change them."""
    name = "rewritten jobs"
    monitor = (evidence.own.status or {}).get("job_monitor", {})
    if monitor.get("error"):
        return warned(name, f"they cannot be checked: {monitor['error']}", "let gpusaged's user call squeue")
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


def run_checks(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the finding of each check, in the order in which an admin should fix them.

    Where slurmctld does not answer, what it alone could report is skipped.
    """
    first = _slurmctld(evidence)
    if first.verdict == "fail":
        names = [check(evidence).check for check in _SLURM_CHECKS]
        unknown = [skipped(name, "slurmctld does not answer", "fix slurmctld first") for name in names]
        return (first, *_gpusage_findings(evidence), *unknown)
    return (first, *(check(evidence) for check in _SLURM_CHECKS), *_gpusage_findings(evidence))


def _gpusage_findings(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings about gpusage itself, which need no slurmctld."""
    own = evidence.own
    daemon = (_daemon(own), _answer_times(own), rewritten_jobs(evidence))
    return (settings_file(own), *daemon, store(own), plugins(own), kill_switch(own), *divisions(own))


def _slurmctld(evidence: Evidence) -> Finding:
    name = "slurmctld"
    if evidence.version is None or not evidence.settings:
        return failed(name, evidence.trouble, "start slurmctld, and run this where scontrol works")
    spelled = "{}.{:02}".format(*evidence.version)
    if evidence.version < OLDEST_VERSION:
        return failed(name, f"Slurm {spelled}", "gpusage needs Slurm 22.05 or newer")
    return passed(name, f"Slurm {spelled} answers")


def _job_submit(evidence: Evidence) -> Finding:
    return _script_check("job_submit plugin", "jobsubmitplugins", "job_submit.lua", evidence)


def _cli_filter(evidence: Evidence) -> Finding:
    return _script_check("cli_filter plugin", "clifilterplugins", "cli_filter.lua", evidence)


def _script_check(name: str, key: str, script: str, evidence: Evidence) -> Finding:
    if find_block(evidence.scripts.get(script, "")) is None:
        return failed(name, f"{script} does not call gpusage", "gpusage slurm install --yes")
    used = evidence.settings.get(key, "")
    if evidence.settings and not list_contains(used, "lua"):
        return failed(name, f"slurmctld uses {key}={used or 'nothing'}", "scontrol reconfigure")
    return passed(name, f"{script} calls gpusage")


def _lua_socket(evidence: Evidence) -> Finding:
    name = "LuaSocket"
    if evidence.dry_run_arrived or "socket" in evidence.lua_modules:
        return passed(name, "slurmctld's Lua can ask the daemon")
    return failed(name, "no module 'socket' where Lua looks", "apt install lua-socket (on the controller)")


def _lua_posix(evidence: Evidence) -> Finding:
    name = "luaposix"
    if "posix" in evidence.lua_modules:
        return passed(name, "models travel without touching --export")
    return warned(name, "no module 'posix' where Lua looks", "apt install lua-posix (on the login nodes)")


def _release(evidence: Evidence) -> Finding:
    name, running = "release", evidence.settings.get("slurm_version", "of no known version")
    if dry_run_crashes(evidence.settings):
        observation = f"slurmctld {running} may crash when anybody tries `sbatch --test-only`, as our dry run does"
        return warned(name, observation, "update Slurm to 26.05.4 or newer; the dry run is left out till then")
    if is_vulnerable(evidence.settings):
        observation = f"slurmctld {running} may have vulnerabilities that 25.05.9, 25.11.8 and 26.05.4 fixed"
        return warned(name, observation, "update Slurm, unless your distribution says that it has fixed them")
    return passed(name, f"slurmctld {running}: no known problem")


def _shares(evidence: Evidence) -> Finding:
    name = "gres/mps"
    if evidence.cluster is None:
        return failed(name, evidence.trouble or "the nodes are not known", "fix slurmctld first")
    pools = evidence.cluster.pools
    if not pools:
        return failed(name, "no node has a GPU", "declare gres/gpu in slurm.conf and gres.conf")
    bare = [pool.site_type for pool in pools if not pool.mps_per_gpu]
    unknown = [pool.site_type for pool in pools if pool.gpu is None]
    todo = "GresTypes=gpu,mps; on each such node Gres=...,mps:100 a GPU, and in gres.conf Name=mps Count=100"
    if len(bare) == len(pools):
        return failed(name, f"no GPU can be shared: {', '.join(bare)}", todo)
    if bare:
        return warned(name, f"these GPUs cannot be shared: {', '.join(bare)}", todo)
    if unknown:
        return warned(name, f"unknown GPU types: {', '.join(unknown)}", "name them as `gpusage gpus` does")
    return passed(name, ", ".join(f"{pool.gpu_count} {pool.site_type} of {pool.mps_per_gpu}" for pool in pools))


def _slices(evidence: Evidence) -> Finding:
    pools = evidence.cluster.pools if evidence.cluster else ()
    partitions = sorted({name for pool in pools for name in pool.partitions})
    only = [name for name in partitions if all(":" in (pool.gpu or "") for pool in pools if name in pool.partitions)]
    if only:
        return passed("slices", f"partitions with MIG slices only, which are given whole: {', '.join(only)}")
    return passed("slices", "no partition has MIG slices only")


def _all_sharing(evidence: Evidence) -> Finding:
    name = "all_sharing"
    lines = [line for line in evidence.gres_conf.splitlines() if "name=mps" in line.lower().replace(" ", "")]
    if not lines:
        return warned(name, "gres.conf has no mps line here", "add Flags=all_sharing to each Name=mps line")
    if not any("all_sharing" in line.lower() for line in lines):
        observation = "only one GPU of a node is shared at a time"
        return warned(name, observation, "add Flags=all_sharing to the Name=mps lines of gres.conf")
    return passed(name, "every GPU of a node can be shared")


def _units(evidence: Evidence) -> Finding:
    name = "mps units"
    if _TYPED_UNITS.search(evidence.scripts.get("slurm.conf", "")):
        todo = "write mps:200 instead of mps:v100:200 in the nodes' Gres, then restart slurmctld and the slurmds"
        return warned(name, "slurm.conf gives mps a type: Slurm 22.05 then shares only a node's first GPU", todo)
    return passed(name, "counted without a type")


def _prefer(evidence: Evidence) -> Finding:
    name = "features"
    if not ignores_unmet_preference(evidence.settings):
        observation = (
            f"SchedulerParameters lacks {SETTING}, without which slurmctld may refuse a job for its preference"
        )
        return warned(
            name, f"{observation}; no generation is preferred", "gpusage slurm install --yes, scontrol reconfigure"
        )
    pools = evidence.cluster.pools if evidence.cluster else ()
    bare = [pool.site_type for pool in pools if not pool.feature]
    if len(pools) > 1 and bare:
        todo = "give each node its GPU type as a Feature in slurm.conf"
        return warned(name, f"no feature leads to {', '.join(bare)}; generations cannot be preferred there", todo)
    return passed(name, ", ".join(str(pool.feature) for pool in pools) or "one pool")


def _per_gpu_defaults(evidence: Evidence) -> Finding:
    name = "defaults per GPU"
    used = sorted({word for word in ("DefMemPerGPU", "DefCpuPerGPU") if _mentions(evidence, word)})
    if used:
        observation = (
            f"a share would lose {' and '.join(used)}, so GPUs stay whole in the partitions to which it applies"
        )
        return warned(name, observation, "use DefMemPerCPU and a default of CPUs a task instead, if shares are wanted")
    return passed(name, "none that a share would lose")


def _accounting(evidence: Evidence) -> Finding:
    name = "accounting"
    text = evidence.scripts.get("slurm.conf", "")
    if not uses_slurmdbd(text) and not evidence.settings.get("accountingstoragetype", "").endswith("slurmdbd"):
        return passed(name, "no slurmdbd: Slurm counts no GPU use here, shared or not")
    if "gres/mps" in evidence.settings.get("accountingstoragetres", "").lower().split(","):
        return _weights(name, evidence)
    if tracks_or_bills_mps(text):
        observation = "slurmctld does not count gres/mps yet, though slurm.conf has it"
        todo = "restart slurmctld; before that, a weight of GRES/mps in TRESBillingWeights would end it"
    else:
        observation = "gres/mps is neither tracked nor billed: a share would be free, and outside every limit"
        todo = "gpusage slurm install --yes, then restart slurmctld; or mode = 'advise'"
    verdict = failed if evidence.own.configuration.mode == "enforce" else warned
    return verdict(name, observation, todo)


def _weights(name: str, evidence: Evidence) -> Finding:
    wrong = list(wrong_weights(evidence.partitions, evidence.cluster.pools if evidence.cluster else ()))
    if wrong:
        observation = "gres/mps is tracked, and a share is not billed as its part of a GPU"
        return warned(name, observation, f"set in TRESBillingWeights {'; '.join(wrong)}; then scontrol reconfigure")
    billed = any("gres/" in line.get("TRESBillingWeights", "").lower() for line in evidence.partitions)
    return passed(
        name, "a share is billed as its part of a GPU" if billed else "gres/mps is tracked; GPUs are not billed"
    )


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
    requests, missed = own.status.get("asks", {}), own.status.get("missed", {})
    late, resting = max(requests.get("overdue", 0), missed.get("silent", 0)), missed.get("rest", 0)
    request_count = requests.get("requests", 0) + resting
    observation = f"of {request_count} jobs {late} had no answer in time, {resting} were not asked about after that"
    if late + resting > request_count * _TOLERATED_LATE:
        todo = (
            "give gpusaged more of this host's processors, or raise slurm.limit_ms and run gpusage slurm install --yes"
        )
        return warned(name, observation, todo)
    return passed(name, observation)


def _submission(evidence: Evidence) -> Finding:
    name = "dry run"
    if dry_run_crashes(evidence.settings):
        return warned(name, "not tried: it could crash this slurmctld", "update Slurm to 26.05.4 or newer")
    if evidence.dry_run_arrived is None:
        return warned(name, "not tried: slurmctld or gpusaged does not answer", "fix these first")
    if not evidence.dry_run_arrived:
        todo = "scontrol reconfigure; then look for 'gpusage' in slurmctld's log"
        return failed(name, "`sbatch --test-only` did not reach gpusaged", todo)
    return passed(name, "`sbatch --test-only` reached gpusaged")


def _pyslurm(evidence: Evidence) -> Finding:
    name = "PySlurm"
    if evidence.pyslurm is None:
        return passed(name, "not installed; scontrol is read instead")
    if evidence.pyslurm != evidence.version:
        version = "PySlurm {}.{:02}".format(*evidence.pyslurm)
        return warned(name, f"{version} is not Slurm's version; scontrol is read instead", "install the matching one")
    return passed(name, "matches Slurm")


def _mentions(evidence: Evidence, word: str) -> bool:
    lines = evidence.scripts.get("slurm.conf", "").splitlines()
    return any(word.lower() in line.partition("#")[0].lower() for line in lines)


def _current(evidence: Evidence) -> Finding:
    name = "installation"
    if evidence.outdated is None:
        return failed(name, "slurm.conf or our settings cannot be read", "see the lines above")
    if evidence.outdated:
        observation = f"{', '.join(evidence.outdated)} would be written differently by this version and these settings"
        return warned(name, observation, "gpusage slurm install --yes, then scontrol reconfigure")
    return passed(name, "as this version and these settings have it")


_SLURM_CHECKS = (
    _release,
    _job_submit,
    _cli_filter,
    _current,
    outside_package,
    _lua_socket,
    _lua_posix,
    task_prolog,
    node_prolog,
    job_container,
    sampler,
    _shares,
    _slices,
    _all_sharing,
    _units,
    _prefer,
    _per_gpu_defaults,
    _accounting,
    enforced_partitions,
    private_data,
    _submission,
    _pyslurm,
)
