"""Whether an installation works: each check reads the evidence and says what to do, in the order of mending."""

from __future__ import annotations

from collections.abc import Callable

from gpusage.cli.doctor import daemon_trouble, divisions, kill_switch, plugins, settings_file, store
from gpusage.cli.findings import Finding, failed, passed, skipped, warned
from gpusage_yarn.address import SOCKET
from gpusage_yarn.evidence import Evidence
from gpusage_yarn.install import CALCULATOR, CLASSES, OLD_CALCULATORS, PROCESSORS, RULES
from gpusage_yarn.jmx import JmxReport
from gpusage_yarn.node_checks import listener, masters, sampler, shares, troubles
from gpusage_yarn.settings import YarnSettings

_INSTALL = "gpusage yarn install --yes on {}, then restart {}"
_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"


def examine(evidence: Evidence) -> tuple[Finding, ...]:
    """Return one finding a check; where no ResourceManager answers, what it alone could tell is skipped."""
    first = _manager(evidence)
    if evidence.view is None:
        asked = tuple(skipped(name, "the ResourceManager does not answer") for name, _ in _OF_CLUSTER)
    else:
        asked = tuple(check(evidence) for _, check in _OF_CLUSTER)
    return (first, *asked, _loading(evidence), sampler(evidence), *_of_gpusage(evidence))


def _of_gpusage(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what is said of gpusage itself, which needs no ResourceManager."""
    own = evidence.own
    daemon = (_daemon(evidence), _allowed_users(evidence))
    return (settings_file(own), *daemon, store(own), plugins(own), _kill_switch(evidence), *divisions(own))


def _manager(evidence: Evidence) -> Finding:
    name = "ResourceManager"
    if evidence.view is None:
        return failed(name, evidence.trouble, "start it, or set HADOOP_CONF_DIR or rm_urls in [yarn] of gpusage.toml")
    if evidence.settings.get("yarn.resourcemanager.scheduler.class", _SCHEDULER) != _SCHEDULER:
        return failed(
            name, "it does not use the CapacityScheduler", f"set yarn.resourcemanager.scheduler.class={_SCHEDULER}"
        )
    return passed(name, f"Hadoop {evidence.view.version} answers")


def _resource_type(evidence: Evidence) -> Finding:
    name, share = "resource type", evidence.own.configuration.of_manager(YarnSettings).share_resource
    known = evidence.view.resource_types if evidence.view else {}
    if share not in known:
        observation = f"{share} is not among {', '.join(sorted(known)) or 'none'}"
        return failed(name, observation, _INSTALL.format("every host of YARN's", "ResourceManager and NodeManagers"))
    if known[share] != 100:  # noqa: PLR2004 - one whole GPU
        todo = f"set yarn.resource-types.{share}.maximum-allocation=100 in resource-types.xml: no more is one GPU"
        return failed(name, f"a container could have {known[share]} of {share}", todo)
    return passed(name, f"{share}, at most 100 a container")


def _calculator(evidence: Evidence) -> Finding:
    name, used = "resource calculator", evidence.settings.get(CALCULATOR)
    if evidence.manager and _has(evidence.manager, CLASSES[CALCULATOR]):
        return passed(name, f"runs, version {evidence.manager.version}")
    if used is None:
        return warned(name, "the ResourceManager does not tell which it uses", "look into capacity-scheduler.xml")
    if used.strip() == CLASSES[CALCULATOR]:
        return passed(name, used)
    if used.strip() in OLD_CALCULATORS:
        todo = _INSTALL.format("the ResourceManager's host", "it")
        return warned(name, f"{used}: shares are not rounded to the site's steps", todo)
    return warned(name, f"the site's own, {used}", "let it extend GpuShareResourceCalculator, to keep shares in steps")


def _rule(evidence: Evidence) -> Finding:
    return _of_manager("placement rule", RULES, evidence)


def _processor(evidence: Evidence) -> Finding:
    return _of_manager("processor", PROCESSORS, evidence)


def _of_manager(name: str, key: str, evidence: Evidence) -> Finding:
    wanted, todo = CLASSES[key], _INSTALL.format("the ResourceManager's host", "it")
    running = evidence.manager
    if running and _has(running, wanted):
        return passed(name, f"runs, version {running.version}")
    named = evidence.settings.get(key)
    if named is not None and wanted not in named:
        return failed(name, f"{key}={named or '(none)'}", todo)
    if running and running.trouble:
        observation = f"whether it runs is not known: {running.trouble}"
        return warned(name, observation, "see whether this host may read the ResourceManager's /jmx")
    return failed(name, "it does not run in the ResourceManager", todo)


def _labels(evidence: Evidence) -> Finding:
    name, view = "node labels", evidence.view
    bare = [node.name for node in view.nodes if node.total.share and not node.label] if view else []
    if evidence.settings.get("yarn.node-labels.enabled", "true") != "true":
        todo = (
            "in yarn-site.xml: yarn.node-labels.enabled=true, yarn.node-labels.fs-store.root-dir=hdfs://.../labels; "
            "then restart the ResourceManager"
        )
        return failed(name, "they are not enabled", todo)
    if bare:
        todo = (
            "name each GPU type, for example: yarn rmadmin -addToClusterNodeLabels 'v100,a100'; "
            f"yarn rmadmin -replaceLabelsOnNode '{bare[0]}=v100'"
        )
        return failed(name, f"{len(bare)} nodes with GPUs have none: {', '.join(bare[:5])}", todo)
    pools = evidence.cluster.pools if evidence.cluster else ()
    strange = [pool.site_type for pool in pools if pool.gpu is None]
    if strange:
        todo = "name them after GPUs as `gpusage gpus` has them, or add them with a plugin's describe_gpus"
        return warned(name, f"not in the catalogue: {', '.join(strange)}", todo)
    return passed(name, ", ".join(f"{pool.site_type}: {pool.gpu_count} GPUs" for pool in pools) or "no GPU")


def _queues(evidence: Evidence) -> Finding:
    name, view = "queues", evidence.view
    if view is None:
        return warned(name, "they are not known", "mend the ResourceManager first")
    labels = sorted({node.label for node in view.nodes if node.total.share and node.label})
    closed = [(queue.path, label) for label in labels for queue in view.queues if not queue.opens(label)]
    unreachable = [label for label in labels if not any(queue.opens(label) for queue in view.queues)]
    if unreachable:
        label = unreachable[0]
        todo = (
            "in capacity-scheduler.xml, of root and of each queue Q: yarn.scheduler.capacity.root.Q."
            f"accessible-node-labels=*, yarn.scheduler.capacity.root.Q.accessible-node-labels.{label}.capacity=100 "
            "(100 in all); then yarn rmadmin -refreshQueues"
        )
        return failed(name, f"no queue has capacity in {', '.join(unreachable)}", todo)
    if closed:
        gaps = ", ".join(f"{queue} not in {label}" for queue, label in closed[:5])
        return passed(name, f"{len(view.queues)}; {gaps}")
    return passed(name, f"{len(view.queues)}, each with capacity in every label")


def _recovery(evidence: Evidence) -> Finding:
    name = "recovery"
    if evidence.settings.get("yarn.resourcemanager.recovery.enabled", "true") != "true":
        todo = "set yarn.resourcemanager.recovery.enabled=true and a store"
        return warned(name, "a restart of the ResourceManager forgets every application", todo)
    return passed(name, "applications outlive a restart of the ResourceManager")


def _loading(evidence: Evidence) -> Finding:
    name = "classes"
    if evidence.loaded is None:
        return skipped(name, evidence.loading_trouble)
    if not evidence.loaded:
        return skipped(name, f"{evidence.folder} names none of ours")
    broken = [f"{found.rpartition('.')[2]}: {trouble}" for found, trouble in evidence.loaded.items() if trouble]
    if broken:
        todo = "put gpusage-yarn-*.jar into share/hadoop/yarn/lib BEFORE a daemon restarts: it would not start"
        return failed(name, "; ".join(broken), todo)
    return passed(name, f"{len(evidence.loaded)} of ours load with the classpath of this host's Hadoop")


def _daemon(evidence: Evidence) -> Finding:
    name, own = "gpusaged", evidence.own
    if own.status is None:
        todo = "systemctl enable --now gpusaged on the ResourceManager's host; gpusage yarn submit works without"
        return warned(name, own.status_trouble, todo)
    trouble = daemon_trouble(own.status, "yarn")
    if trouble:
        return warned(name, trouble, "see `gpusage yarn status`")
    named = evidence.settings.get(SOCKET, own.socket)
    if named != own.socket:
        todo = f"gpusage yarn install --yes, or socket = {named!r} in [daemon] of gpusage.toml"
        return warned(name, f"the ResourceManager asks at {named}, it listens at {own.socket}", todo)
    return passed(name, f"answers at {named}")


def _allowed_users(evidence: Evidence) -> Finding:
    name, user = "allowed users", evidence.user
    if evidence.own.configuration_trouble:
        return skipped(name, "gpusage.toml, which lists them, cannot be used")
    if user is None:
        return skipped(name, "no ResourceManager that answers runs on this host")
    if user.allowed:
        return passed(name, f"gpusaged answers to {user.name}, the ResourceManager's user")
    verdict = warned if evidence.own.status is None else failed
    wanted = ", ".join(f'"{each}"' for each in (*evidence.own.configuration.daemon.allowed_users, user.name))
    todo = f"in gpusage.toml: [daemon] allowed_users = [{wanted}]"
    return verdict(name, f"gpusaged would not answer to {user.name}, the ResourceManager's user", todo)


def _kill_switch(evidence: Evidence) -> Finding:
    finding, ours = kill_switch(evidence.own), evidence.own.configuration.kill_switch
    theirs = evidence.settings.get("gpusage.switch-file", ours)
    if finding.verdict == "pass" and theirs != ours:
        observation = f"the ResourceManager looks at {theirs}, gpusaged at {ours}"
        return warned(finding.check, observation, "gpusage yarn install --yes, to have one for both")
    return finding


_OF_CLUSTER: tuple[tuple[str, Callable[[Evidence], Finding]], ...] = (
    ("resource type", _resource_type),
    ("resource calculator", _calculator),
    ("placement rule", _rule),
    ("processor", _processor),
    ("node listener", listener),
    ("shares of nodes", shares),
    ("troubles", troubles),
    ("node labels", _labels),
    ("queues", _queues),
    ("masters", masters),
    ("recovery", _recovery),
)


def _has(daemon: JmxReport, wanted: str) -> bool:
    return bool({wanted, wanted.rpartition(".")[2]} & daemon.classes)
