"""The text of a sandbox's slurm.conf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusage_sandboxes.slurm.installation import Installation
from gpusage_sandboxes.slurm.layout import ClusterPlan, Layout, render_node

_TEMPLATE = """\
# A gpusage sandbox: a private cluster on one machine. Edit freely; then `scontrol reconfigure`.
ClusterName={cluster_name}
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge_socket}
PluginDir={plugins}
MailProg=/bin/true

StateSaveLocation={state}/slurmctld
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/%n.log
SlurmctldDebug=info
SlurmdDebug=info

# No cgroups, no task plugin, no accounting daemon: nothing that needs root or touches the host.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2

# Quick rather than thrifty: a handful of jobs, somebody watching.
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1,bf_resolution=1,ignore_prefer_validation
KillWait=2
MinJobAge=86400
SlurmdTimeout=60

SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes={gres_types}

{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 OverSubscribe=NO State=UP
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a sandbox's configuration takes from the machine."""

    user: str
    hostname: str
    ports: Sequence[int]


def render_slurm_conf(
    plan: ClusterPlan, layout: Layout, installation: Installation, host: Host, cluster_name: str
) -> str:
    """Return slurm.conf; the controller has the first of the host's ports, slurmdbd the last, each node one between."""
    nodes = [
        render_node(node, plan, hostname=host.hostname, port=port)
        for node, port in zip(plan.nodes, host.ports[1:-1], strict=True)
    ]
    text = _TEMPLATE.format(
        cluster_name=cluster_name,
        hostname=host.hostname,
        controller_port=host.ports[0],
        user=host.user,
        munge_socket=layout.munge_socket,
        plugins=installation.plugins,
        state=layout.state,
        spool=layout.spool,
        run=layout.run,
        logs=layout.logs,
        gres_types="gpu,mps" if plan.mps_per_gpu else "gpu",
        nodes="\n".join(nodes),
    )
    return text + "".join(f"{line}\n" for line in [*_switches(plan, layout), *plan.settings])


def _switches(plan: ClusterPlan, layout: Layout) -> Iterator[str]:
    """Yield the settings that switch the plan's scripts on."""
    switches = {
        "job_submit.lua": "JobSubmitPlugins=lua",
        "cli_filter.lua": "CliFilterPlugins=lua",
        "task_prolog.sh": f"TaskProlog={layout.etc}/task_prolog.sh",
    }
    for name, setting in switches.items():
        if plan.scripts is not None and (plan.scripts / name).is_file():
            yield setting
