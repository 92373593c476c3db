"""The checks of `gpusage slurm doctor` on GPUs: which of them can be shared and preferred, and how they are billed."""

from __future__ import annotations

import re

from gpusage.cli.admin import Finding, failed, passed, warned
from gpusage.cli.status import describe_limits
from gpusage.decisions.advisor import advisor
from gpusage_slurm.cluster.billing import SHARES, wrong_weights
from gpusage_slurm.cluster.limits import UNKNOWN
from gpusage_slurm.cluster.observation import NO_PREFERENCE, NO_RELEASE, SETTING, ignores_unmet_preference
from gpusage_slurm.cluster.pools import how_to_share
from gpusage_slurm.doctor.evidence import Evidence
from gpusage_slurm.install.site import tracks_or_bills_mps, uses_slurmdbd

_MOST_REMEDIES = 4
_CONSTRAINS = re.compile(r"^\s*ConstrainDevices\s*=\s*(\w+)", re.IGNORECASE | re.MULTILINE)
_TYPED_UNITS = re.compile(r"^\s*NodeName=[^#\n]*\bmps:[^:,\s#]+:\d", re.IGNORECASE | re.MULTILINE)


def shares(name: str, evidence: Evidence) -> Finding:
    """Check that nodes have GPUs, and shares of them."""
    if evidence.cluster is None:
        return failed(name, evidence.trouble or "the nodes are not known", "fix slurmctld first")
    pools = evidence.cluster.pools
    if not pools:
        return failed(name, "no node has a GPU", "declare gres/gpu in slurm.conf and gres.conf")

    bare = [pool.site_type for pool in pools if not pool.mps_per_gpu]
    partly = [pool.site_type for pool in pools if len({kind.has_shares for kind in pool.node_kinds}) > 1]
    todo = how_to_share(pools, advisor().catalogue) or "GresTypes=gpu,mps; on each such node Gres=...,mps:100 a GPU"
    if len(bare) == len(pools):
        return failed(name, f"no GPU can be shared: {', '.join(bare)}", todo)
    if bare:
        return warned(name, f"these GPUs cannot be shared: {', '.join(bare)}", todo)
    if partly:
        observation = f"some nodes with {', '.join(partly)} have no mps: no share ever starts there"
        return warned(name, observation, f"if they shall be shared: {todo}")
    return passed(name, ", ".join(f"{pool.gpu_count} {pool.site_type} of {pool.mps_per_gpu}" for pool in pools))


def types(name: str, evidence: Evidence) -> Finding:
    """Check that each GPU is understood by its type or a feature, and that shares can be led to each type."""
    if evidence.cluster is None:
        return passed(name, "not known")

    # Other checks say the other notes.
    pools = evidence.cluster.pools
    of_other_checks = (NO_RELEASE, NO_PREFERENCE, how_to_share(pools, advisor().catalogue))
    notes = [note for note in evidence.cluster.notes if note not in of_other_checks]
    if notes:
        observations, todos = zip(*(note.split(": ", 1) for note in notes), strict=True)
        return warned(name, "; ".join(observations), "; ".join(todos))
    return passed(name, ", ".join(pool.gpu or "" for pool in pools))


def node_gpus(name: str, evidence: Evidence) -> Finding:
    """Check that nobody but gpusage divides this node's GPUs."""
    if evidence.foreign_mps:
        observation = f"MPS daemons of others run here: {', '.join(evidence.foreign_mps)}"
        todo = "end them in the nodes' own prolog: gpusage starts one for each GPU that it shares"
        return warned(name, f"{observation}; beside their clients a share runs by time slices only", todo)
    if evidence.exclusive_gpus:
        observation = f"GPUs that one program alone may use: {', '.join(evidence.exclusive_gpus)}"
        todo = "nvidia-smi -c DEFAULT on the nodes whose GPUs are shared"
        return warned(name, f"{observation}; beside another job a share whose MPS does not start fails there", todo)
    return passed(name, "no other MPS daemon, no exclusive compute mode here")


def devices(name: str, evidence: Evidence) -> Finding:
    """Check that a job sees its own GPU alone, under the number 0."""
    # Slurm 22.05 shows cgroup.conf's settings only where a plugin uses them.
    lines = _CONSTRAINS.findall(evidence.scripts.get("cgroup.conf", ""))
    is_set = (evidence.settings.get("constraindevices") or (lines[-1] if lines else "no")).lower() == "yes"
    if is_set and "task/cgroup" in evidence.settings.get("taskplugin", ""):
        return passed(name, "ConstrainDevices: a job sees its own GPU alone, as number 0")
    observation = "without ConstrainDevices=yes and task/cgroup a share finds any but a node's first GPU by its UUID"
    todo = "ConstrainDevices=yes in cgroup.conf, task/cgroup in TaskPlugin; then restart slurmctld and the slurmds"
    return warned(name, f"{observation}, on which programs fail that expect a number", todo)


def memory_limits(name: str, evidence: Evidence) -> Finding:
    """Say what limits the memory of shares, on which GPU types, and why not more."""
    pools = [pool for pool in evidence.cluster.pools if pool.mps_per_gpu] if evidence.cluster else []
    described = "; ".join(describe_limits(pools)) or "no GPU can be shared"
    if any(pool.limited_by == "none" for pool in pools):
        todo = (
            "install NVIDIA's MPS (nvidia-cuda-mps-control) there; `gpusage-mps offers` on such a node says what it has"
        )
        return warned(name, described, todo)
    return passed(name, described)


def all_sharing(name: str, evidence: Evidence) -> Finding:
    """Check that several GPUs of a node can be shared at a time."""
    # Without the flag Slurm shares one GPU of a node at a time, gres.conf's default (tried on 22.05).
    lines = [line for line in evidence.gres_conf.splitlines() if "name=mps" in line.lower().replace(" ", "")]
    if not lines:
        return warned(name, "gres.conf has no mps line here", "add Flags=all_sharing to each Name=mps line")
    if not any("all_sharing" in line.lower() for line in lines):
        observation = "only one GPU of a node is shared at a time"
        return warned(name, observation, "add Flags=all_sharing to the Name=mps lines of gres.conf")
    return passed(name, "every GPU of a node can be shared")


def untyped_units(name: str, evidence: Evidence) -> Finding:
    """Check that slurm.conf counts shares without a GPU type."""
    if _TYPED_UNITS.search(evidence.scripts.get("slurm.conf", "")):
        todo = "write mps:200 instead of mps:v100:200 in the nodes' Gres, then restart slurmctld and the slurmds"
        return warned(name, "slurm.conf gives mps a type: Slurm 22.05 then shares only a node's first GPU", todo)
    return passed(name, "counted without a type")


def features(name: str, evidence: Evidence) -> Finding:
    """Check that a GPU generation can be preferred."""
    if not ignores_unmet_preference(evidence.settings):
        observation = (
            f"SchedulerParameters lacks {SETTING}, without which slurmctld may refuse a job for its preference; no "
            "generation is preferred"
        )
        return warned(name, observation, "gpusage slurm install --yes, scontrol reconfigure")

    pools = evidence.cluster.pools if evidence.cluster else ()
    bare = [pool.site_type for pool in pools if not pool.feature]
    if len(pools) > 1 and bare:
        todo = "give each node its GPU type as a Feature in slurm.conf"
        return warned(name, f"no feature leads to {', '.join(bare)}; generations cannot be preferred there", todo)
    return passed(name, ", ".join(str(pool.feature) for pool in pools) or "one pool")


def per_gpu_defaults(name: str, evidence: Evidence) -> Finding:
    """Check that a share loses nothing that a site gives for each GPU."""
    lines = evidence.scripts.get("slurm.conf", "").splitlines()
    text = "\n".join(line.partition("#")[0].lower() for line in lines)
    used = [word for word in ("DefCpuPerGPU", "DefMemPerGPU") if word.lower() in text]
    if used:
        observation = (
            f"a share would lose {' and '.join(used)}, so GPUs stay whole in the partitions to which it applies"
        )
        return warned(name, observation, "use DefMemPerCPU and a default of CPUs a task instead, if shares are wanted")
    return passed(name, "none that a share would lose")


def accounting(name: str, evidence: Evidence) -> Finding:
    """Check that a share is counted and billed as its part of a GPU."""
    text = evidence.scripts.get("slurm.conf", "")
    if not uses_slurmdbd(text) and not evidence.settings.get("accountingstoragetype", "").endswith("slurmdbd"):
        return passed(name, "no slurmdbd: Slurm counts no GPU use here, shared or not")

    if SHARES in evidence.settings.get("accountingstoragetres", "").lower().split(","):
        wrong = list(wrong_weights(evidence.partitions, evidence.cluster.pools if evidence.cluster else ()))
        if wrong:
            observation = "gres/mps is tracked, and a share is not billed as its part of a GPU"
            return warned(name, observation, f"set in TRESBillingWeights {'; '.join(wrong)}; then scontrol reconfigure")
        if any("gres/" in line.get("TRESBillingWeights", "").lower() for line in evidence.partitions):
            return passed(name, "a share is billed as its part of a GPU")
        return passed(name, "gres/mps is tracked; GPUs are not billed")

    if tracks_or_bills_mps(text):
        observation = "slurmctld does not count gres/mps yet, though slurm.conf has it"
        todo = "restart slurmctld; before that, a weight of GRES/mps in TRESBillingWeights would end it"
    else:
        observation = "gres/mps is neither tracked nor billed: a share would be free, and outside every limit"
        todo = "gpusage slurm install --yes, then restart slurmctld; or mode = 'advise'"
    return evidence.unshared(name, observation, todo)


def limits(name: str, evidence: Evidence) -> Finding:
    """Check that every limit on GPUs holds for shares too, and that gpusaged can know it."""
    if evidence.limits is None:
        todo = "start slurmdbd; run gpusaged as SlurmUser, or give its user AdminLevel=Operator"
        observation = f"{UNKNOWN}, so no GPU is shared unless gpusaged read them earlier"
        return evidence.unshared(name, f"{observation} ({evidence.limits_trouble})", todo)

    reasons = [limit.reason for limit in evidence.limits if limit.remedies]
    if not reasons:
        return passed(name, "none that does not count shares")
    more = f", and {len(reasons) - 1} more such limits" if len(reasons) > 1 else ""
    remedies = [*dict.fromkeys(remedy for limit in evidence.limits for remedy in limit.remedies)]
    todo = "; ".join(remedies[:_MOST_REMEDIES]) + ("; ..." if len(remedies) > _MOST_REMEDIES else "")
    return evidence.unshared(name, f"{reasons[0]}{more}: whole GPUs are kept there", todo)


def enforced_partitions(name: str, evidence: Evidence) -> Finding:
    """Check that the partitions of `enforce_in` exist."""
    configuration = evidence.own.configuration
    if configuration.mode != "enforce" or not configuration.enforce_in:
        return passed(name, f"mode {configuration.mode} holds in all of them")

    there = {line["PartitionName"] for line in evidence.partitions}
    unknown = [each for each in configuration.enforce_in if each not in there]
    if unknown:
        observation = f"'enforce_in' names {', '.join(unknown)}, which slurmctld does not have"
        return warned(name, observation, "name partitions as `scontrol show partitions` does")
    return passed(name, f"mode enforce in {', '.join(configuration.enforce_in)}, observe in the others")
