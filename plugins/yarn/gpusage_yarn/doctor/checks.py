"""The checks of `gpusage yarn doctor`, in order of repair: each reads the inspection, and names a remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from gpusage.cli.admin import (
    Finding,
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
from gpusage_yarn.cluster import configuration as hadoop
from gpusage_yarn.cluster.jmx import JmxReport
from gpusage_yarn.doctor import queue_checks
from gpusage_yarn.doctor.inspection import Inspection
from gpusage_yarn.install.site import CAPACITY_SCHEDULER, FOR_WHOLE_GPUS, ISOLATION, SCHEDULER_CLASS
from gpusage_yarn.settings import YarnSettings
from gpusage_yarn.share_plan import WHOLE_GPU

_RESOURCE = "yarn.nodemanager.resource-type"
_INSTALL = "gpusage yarn install --yes on {}, then restart {}"
_CALCULATOR = hadoop.CLASSES[hadoop.CALCULATOR]


def run_checks(inspection: Inspection) -> tuple[Finding, ...]:
    """Return a finding of each check; where no ResourceManager answers, checks of its own settings are skipped."""
    own = inspection.own
    findings: tuple[Finding, ...]
    if inspection.snapshot is None:
        findings = tuple(skipped(name, "the ResourceManager does not answer") for name in _CLUSTER_CHECKS)
    else:
        findings = tuple(check(name, inspection) for name, check in _CLUSTER_CHECKS.items())

    return (
        _manager(inspection),
        *findings,
        _loading(inspection),
        _sampler(inspection),
        settings_file(own),
        _daemon(inspection),
        _allowed_users(inspection),
        store(own),
        seen_enough(own),
        plugins(own),
        _kill_switch(inspection),
        *divisions(own),
    )


def _manager(inspection: Inspection) -> Finding:
    name = "ResourceManager"
    if inspection.snapshot is None:
        return failed(name, inspection.trouble, "start it, or set HADOOP_CONF_DIR or rm_urls in [yarn] of gpusage.toml")

    # Placement rules and our calculator are the CapacityScheduler's; the FairScheduler asks neither.
    if inspection.settings.get(SCHEDULER_CLASS, CAPACITY_SCHEDULER) != CAPACITY_SCHEDULER:
        return failed(name, "it does not use the CapacityScheduler", f"set {SCHEDULER_CLASS}={CAPACITY_SCHEDULER}")
    return passed(name, f"Hadoop {inspection.snapshot.version} answers")


def resource_type(name: str, inspection: Inspection) -> Finding:
    """Check that YARN counts shares, and that a container may have a whole GPU."""
    share = inspection.own.configuration.of_manager(YarnSettings).share_resource
    known = inspection.snapshot.resource_types if inspection.snapshot else {}
    if share not in known:
        observation = f"{share} is not among {', '.join(sorted(known)) or 'none'}"
        return failed(name, observation, _INSTALL.format("every host of YARN's", "ResourceManager and NodeManagers"))
    if known[share] < WHOLE_GPU:
        todo = f"set yarn.resource-types.{share}.maximum-allocation=1600 in resource-types.xml: a GPU is {WHOLE_GPU}"
        return failed(name, f"no container can have a whole GPU, only {known[share]} of {share}", todo)
    return passed(name, f"{share}, at most {known[share] // WHOLE_GPU} whole GPUs a container")


def calculator(name: str, inspection: Inspection) -> Finding:
    """Check that shares are rounded to the site's steps."""
    used = inspection.settings.get(hadoop.CALCULATOR)
    if inspection.manager and _runs_class(inspection.manager, _CALCULATOR):
        return passed(name, f"runs, version {inspection.manager.version}")

    # One that has not started in a ResourceManager that shows nothing may still be named in its settings.
    if used is None:
        return warned(name, "the ResourceManager does not report which it uses", "look into capacity-scheduler.xml")
    if used.strip() == _CALCULATOR:
        return passed(name, used)
    if used.strip() in ("", hadoop.DEFAULT_CALCULATOR, hadoop.DOMINANT_CALCULATOR):
        todo = _INSTALL.format("the ResourceManager's host", "it")
        return warned(name, f"{used}: shares are not rounded to the site's steps", todo)
    return warned(name, f"the site's own, {used}", "let it extend GpuShareResourceCalculator, to keep shares in steps")


def placement_rule(name: str, inspection: Inspection) -> Finding:
    """Check the rule that asks gpusaged."""
    return _of_manager(name, hadoop.RULES, inspection)


def processor(name: str, inspection: Inspection) -> Finding:
    """Check the processor that puts plans into requests."""
    return _of_manager(name, hadoop.PROCESSORS, inspection)


def _of_manager(name: str, key: str, inspection: Inspection) -> Finding:
    expected, todo = hadoop.CLASSES[key], _INSTALL.format("the ResourceManager's host", "it")
    running = inspection.manager
    if running and _runs_class(running, expected):
        lacking = [other.name for other in inspection.others if not other.trouble and not _runs_class(other, expected)]
        if lacking:
            return failed(name, f"it does not run in {lacking[0]}, which may take over", todo)
        return passed(name, f"runs, version {running.version}")

    # What does not run may be named, and wait for a restart.
    named = inspection.settings.get(key)
    if named is not None and expected not in named:
        return failed(name, f"{key}={named or '(none)'}", todo)
    if running and running.trouble:
        observation = f"whether it runs is not known: {running.trouble}"
        return warned(name, observation, "check whether this host may read the ResourceManager's /jmx")
    return failed(name, "it does not run in the ResourceManager", todo)


def _runs_class(daemon: JmxReport, expected: str) -> bool:
    return bool({expected, expected.rpartition(".")[2]} & daemon.classes)


def allocator(name: str, inspection: Inspection) -> Finding:
    """Check that containers are bound to GPUs when they are allocated; it begins with the first request."""
    named = inspection.settings.get(hadoop.ALLOCATOR)
    if named is None:
        return warned(name, "the ResourceManager does not report which it uses", "look into yarn-site.xml")
    if hadoop.CLASSES[hadoop.ALLOCATOR] in named:
        return passed(name, f"{hadoop.ALLOCATOR}={named}")
    observation = f"{named or '(none)'}: a container may be sent to a node none of whose GPUs has room, and wait there"
    return warned(name, observation, _INSTALL.format("the ResourceManager's host", "it"))


def listener(name: str, inspection: Inspection) -> Finding:
    """Tell nodes that bind no container to a GPU, and why."""
    if not inspection.nodes:
        return failed(
            name, "no node offers shares", "gpusage yarn install --role node --gpus N --yes on each, restart it"
        )

    silent = [node for node in inspection.nodes if node.trouble]
    lacking = [node for node in inspection.nodes if not node.binds and not node.trouble]
    if lacking:
        names = _first_names(node.name for node in lacking)
        observation = f"it does not run on {len(lacking)} of {len(inspection.nodes)} nodes: {names}"
        trouble = next((line for node in lacking for line in node.troubles), "")
        if trouble:
            return failed(name, f"{observation}; {trouble}", "fix what it reports, then restart the NodeManager")
        return failed(name, observation, "gpusage yarn install --role node --yes there, then restart the NodeManager")
    if silent:
        observation = f"{_first_names(node.name for node in silent)} did not report: {silent[0].trouble}"
        return warned(name, observation, "check whether this host reaches their web addresses, and may read /jmx there")

    versions = sorted(
        {daemon.version for daemon in (*inspection.nodes, inspection.manager) if daemon and daemon.classes}
    )
    if len(versions) > 1:
        return warned(name, f"versions {', '.join(versions)} run side by side", "put the same jar on every host")
    return passed(name, f"runs on {len(inspection.nodes)} nodes, version {versions[0]}; {ISOLATION}")


def shares(name: str, inspection: Inspection) -> Finding:
    """Tell nodes that offer other GPUs than they share out, and labels in which nobody can have a whole one."""
    offered = {node.name: node for node in inspection.snapshot.nodes} if inspection.snapshot else {}
    both = [
        each.name for each in offered.values() if each.total.share and each.gpus and each.name not in inspection.divided
    ]

    # The listener's own count is of GPUs that it found; YARN's is what the site has written.
    for node in inspection.nodes:
        share = offered[node.name].total.share if node.name in offered else 0
        if node.free and share != WHOLE_GPU * len(node.free):
            observation = f"{node.name} offers {share}, and its listener has {len(node.free)} GPUs"
            resource = inspection.own.configuration.of_manager(YarnSettings).share_resource
            todo = (
                f"set {_RESOURCE}.{resource} to {WHOLE_GPU * len(node.free)}, "
                "or gpusage.node.gpus to all GPUs that are shared; then restart the NodeManager"
            )
            return failed(name, observation, todo)

    if both:
        observation = f"{_first_names(both)} offer yarn.io/gpu as well: the same GPU may be given out twice"
        todo = "let gpusage.node.gpus name the shared GPUs, and yarn.nodemanager.resource-plugins.gpu others"
        return warned(name, observation, todo)

    # The next try of a job that ran out of memory in a share asks for yarn.io/gpu, as its client did.
    whole_labels = {node.label for node in offered.values() if node.gpus}
    without_whole = sorted({node.label for node in offered.values() if node.total.share} - whole_labels)
    if without_whole and inspection.settings.get(FOR_WHOLE_GPUS, "").strip().lower() == "false":
        where = without_whole[0] or "nodes without a label"
        observation = f"{FOR_WHOLE_GPUS} is false: who asks for yarn.io/gpu waits for ever in {where}"
        return failed(name, observation, f"take {FOR_WHOLE_GPUS} out of yarn-site.xml; restart the ResourceManager")
    whole = sum(node.gpus for node in offered.values() if not node.total.share)
    others = f"; {whole} of other nodes are whole, as yarn.io/gpu" if whole else ""
    return passed(
        name, f"{sum(node.total.share for node in offered.values()) // WHOLE_GPU} GPUs, each counted once{others}"
    )


def troubles(name: str, inspection: Inspection) -> Finding:
    """Report the daemons' own troubles: MPS, the listener, and exceptions of ours that were kept from them."""
    daemons = [*([inspection.manager] if inspection.manager else []), *inspection.nodes]
    sentences = [f"{daemon.name}: {line}" for daemon in daemons for line in daemon.troubles]
    if sentences:
        return failed(name, "; ".join(sentences[:5]), "fix what it reports, then restart that daemon")

    failing = [f"{daemon.name}: {daemon.failures}" for daemon in daemons if daemon.failures]
    if failing:
        observation = f"exceptions of gpusage have not reached daemons since they started: {_first_names(failing)}"
        return warned(name, observation, "look for gpusage in their logs")
    return passed(name, "no daemon reports any")


def recovery(name: str, inspection: Inspection) -> Finding:
    """Check that applications outlive a restart of the ResourceManager."""
    if inspection.settings.get("yarn.resourcemanager.recovery.enabled", "true") != "true":
        todo = "set yarn.resourcemanager.recovery.enabled=true and a store"
        return warned(name, "a restart of the ResourceManager forgets every application", todo)
    return passed(name, "applications outlive a restart of the ResourceManager")


def _first_names(names: Iterable[str]) -> str:
    """Return a few of *names*."""
    known = list(names)
    return ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")  # as many


def _loading(inspection: Inspection) -> Finding:
    name = "classes"
    if inspection.loaded is None:
        return skipped(name, inspection.loading_trouble)
    if not inspection.loaded:
        return skipped(name, f"{inspection.folder} names none of ours")

    broken = [
        f"{class_name.rpartition('.')[2]}: {trouble}" for class_name, trouble in inspection.loaded.items() if trouble
    ]
    if broken:
        todo = "put gpusage-yarn-*.jar into share/hadoop/yarn/lib BEFORE a daemon restarts: it would not start"
        return failed(name, "; ".join(broken), todo)
    return passed(name, f"{len(inspection.loaded)} of gpusage's classes load with the classpath of this host's Hadoop")


def _sampler(inspection: Inspection) -> Finding:
    """Check the program that samples containers."""
    name, command = "sampler", inspection.sampler
    if command is None:
        return skipped(name, "this host's configuration is of no node")
    if inspection.old_copies:
        observation = f"another gpusage has written {', '.join(map(str, inspection.old_copies))}"
        return warned(name, observation, "gpusage yarn install --role node --yes here")

    program = command.partition(" ")[0]
    if os.access(program, os.X_OK):
        return passed(name, command)
    observation = f"gpusage.node.usage-command is {command or '(none)'}: nobody knows what containers here really did"
    todo = "install gpusage on the node, gpusage yarn install --role node --yes there, then restart the NodeManager"
    return warned(name, observation, todo)


def _daemon(inspection: Inspection) -> Finding:
    name, own = "gpusaged", inspection.own
    if own.status is None:
        todo = "systemctl enable --now gpusaged on the ResourceManager's host; gpusage yarn submit works without"
        return warned(name, own.status_trouble, todo)
    trouble = daemon_trouble(own.status, "yarn")
    if trouble:
        return warned(name, trouble, "see `gpusage yarn status`")

    named = inspection.settings.get(hadoop.SOCKET, own.socket)
    if named != own.socket:
        todo = f"gpusage yarn install --yes, or socket = {named!r} in [daemon] of gpusage.toml"
        return warned(name, f"the ResourceManager asks at {named}, it listens at {own.socket}", todo)
    return passed(name, f"answers at {named}")


def _allowed_users(inspection: Inspection) -> Finding:
    name, user = "allowed users", inspection.user
    if inspection.own.configuration_trouble:
        return skipped(name, "gpusage.toml, which lists them, cannot be used")
    if user is None:
        return skipped(name, "no ResourceManager that answers runs on this host")
    if user.allowed:
        return passed(name, f"gpusaged answers to {user.name}, the ResourceManager's user")

    # Without a gpusaged nobody is refused.
    verdict = warned if inspection.own.status is None else failed
    expected = ", ".join(f'"{each}"' for each in (*inspection.own.configuration.daemon.allowed_users, user.name))
    todo = f"in gpusage.toml: [daemon] allowed_users = [{expected}]"
    return verdict(name, f"gpusaged would not answer to {user.name}, the ResourceManager's user", todo)


def _kill_switch(inspection: Inspection) -> Finding:
    # The ResourceManager looks for the file by its own settings, gpusaged by gpusage.toml.
    finding, ours = kill_switch(inspection.own), inspection.own.configuration.kill_switch
    theirs = inspection.settings.get("gpusage.switch-file", ours)
    if finding.verdict == "pass" and theirs != ours:
        observation = f"the ResourceManager looks at {theirs}, gpusaged at {ours}"
        return warned(finding.check, observation, "gpusage yarn install --yes, to have one for both")
    return finding


_CLUSTER_CHECKS: Mapping[str, Callable[[str, Inspection], Finding]] = MappingProxyType(
    {
        "resource type": resource_type,
        "resource calculator": calculator,
        "placement rule": placement_rule,
        "processor": processor,
        "placement allocator": allocator,
        "node listener": listener,
        "shares of nodes": shares,
        "troubles": troubles,
        "node labels": queue_checks.node_labels,
        "queues": queue_checks.queues,
        "masters": queue_checks.masters,
        "recovery": recovery,
    }
)
"""The checks that need the ResourceManager's answers, by the names that an admin sees."""
