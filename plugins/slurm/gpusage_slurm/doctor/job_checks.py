"""Doctor's look at jobs: where they are rewritten, which wait in vain, and whether gpusaged may give back their GPU."""

from __future__ import annotations

from gpusage.cli.findings import Finding, passed, warned
from gpusage_slurm.cluster.rights import may_change_jobs
from gpusage_slurm.doctor.evidence import Evidence

_RUN_AS = "systemctl edit gpusaged: [Service] and User= with SlurmUser's name; then systemctl restart gpusaged"


def enforced_partitions(evidence: Evidence) -> Finding:
    """Return whether the partitions in which the site enforces are there."""
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
    """Return whether slurmctld hides from gpusaged what it has to see."""
    name, hidden = "private data", evidence.settings.get("privatedata", "").lower().split(",")
    unseen = [word for word in ("jobs", "nodes", "partitions", "reservations") if word in hidden]
    if not unseen or not _may_change_no_job(evidence):
        return passed(name, "gpusaged sees jobs and nodes")
    observation = f"PrivateData hides {', '.join(unseen)} from gpusaged, which runs as uid {evidence.daemon_uid}"
    return warned(name, observation, _RUN_AS)


def rewritten_jobs(evidence: Evidence) -> Finding:
    """Return what gpusaged says of them, or that it may do nothing for them."""
    name = "rewritten jobs"
    aftercare = (evidence.own.status or {}).get("aftercare", {})
    if aftercare.get("error"):
        return warned(name, f"they cannot be looked at: {aftercare['error']}", "let gpusaged's user call squeue")
    helpless = evidence.own.configuration.mode == "enforce" and _may_change_no_job(evidence)
    if aftercare.get("stuck"):
        todo = "cancel them, and submit them with gpusage=off in the comment"
        return warned(name, "; ".join(aftercare["stuck"]), f"{todo}; {_RUN_AS}" if helpless else todo)
    if helpless:
        observation = (
            f"gpusaged runs as uid {evidence.daemon_uid}: no share binds a job to GPU types, and unless that is an "
            "operator, it can turn no stuck job back"
        )
        return warned(name, observation, _RUN_AS)
    return passed(name, f"none waits in vain; {aftercare.get('turned_back', 0)} turned back")


def _may_change_no_job(evidence: Evidence) -> bool:
    """Tell whether gpusaged runs as neither root nor SlurmUser, as far as can be known."""
    uid = evidence.daemon_uid
    return "slurmuser" in evidence.settings and uid is not None and not may_change_jobs(uid, evidence.settings)
