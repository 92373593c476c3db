"""The text of a sandbox's configuration files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from xml.sax.saxutils import escape

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.settings.configuration import SiteMode
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.units import MIB
from gpusage_sandboxes.layout import SandboxNode
from gpusage_sandboxes.yarn.layout import CLIENT, ClusterPlan, Layout
from gpusage_yarn.cluster.configuration import (
    ALLOCATOR,
    CALCULATOR,
    CLASSES,
    LISTENERS,
    PROCESSORS,
    RESOURCE_TYPES,
    RULES,
    SCHEDULER,
    SITE,
)
from gpusage_yarn.install.site import MAX_GPUS
from gpusage_yarn.share_plan import SHARE

MARK = "GPUSAGE_YARN_SANDBOX"
"""The variable that every process of a sandbox carries, containers included; its value is the sandbox's folder."""

RM_PORTS = ("", ".scheduler", ".resource-tracker", ".admin", ".webapp")
NODE_PORTS = ("", ".localizer", ".collector-service", ".webapp")

_NODE_MEMORY_MIB = 16 * 1024
_NODE_CORES = 32
_PLAIN_CALCULATOR = "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
_END = "</configuration>\n"
_LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.out
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


def rm_files(plan: ClusterPlan, layout: Layout, ports: Sequence[int]) -> dict[str, str]:
    """Return the ResourceManager's configuration files by name."""
    files = client_files(plan, layout, ports)
    settings = {**_rm_settings(layout, ports), **_site_settings(plan, layout)}
    return {
        **_common_files(plan, layout),
        **{name: _merged_file(files[name], layout, name) for name in (SCHEDULER, RESOURCE_TYPES)},
        SITE: _merged_file(render_configuration(settings), layout, SITE),
    }


def node_files(
    plan: ClusterPlan, layout: Layout, node: SandboxNode, ports: Sequence[int], rm_ports: Sequence[int]
) -> dict[str, str]:
    """Return the configuration files of one NodeManager by name."""
    settings = {**client_settings(rm_ports), **_node_settings(plan, layout, node, ports)}
    settings |= _site_settings(plan, layout)
    files = _common_files(plan, layout)
    return {
        **files,
        RESOURCE_TYPES: _merged_file(files[RESOURCE_TYPES], layout, RESOURCE_TYPES),
        SITE: _merged_file(render_configuration(settings), layout, SITE, plan.node_settings),
    }


def client_files(plan: ClusterPlan, layout: Layout, rm_ports: Sequence[int]) -> dict[str, str]:
    """Return the configuration files of those who submit, by name; Hadoop's warnings only are shown to them.

    They are the site's own as well: what is changed in them, every daemon reads when it starts anew.
    """
    settings = {**client_settings(rm_ports), **_site_settings(plan, layout)}
    return {
        **_common_files(plan, layout),
        SITE: render_configuration(settings),
        SCHEDULER: render_configuration(dict(_scheduler_settings(plan))),
        "log4j.properties": _LOG4J.replace("INFO", "WARN").replace("System.out", "System.err"),
    }


def render_configuration(settings: Mapping[str, str]) -> str:
    """Return *settings* as Hadoop reads them."""
    return f'<?xml version="1.0"?>\n<configuration>\n{_lines(settings)}{_END}'


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )


def _merged_file(text: str, layout: Layout, name: str, over: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a daemon's file *text* with the clients' file of that name after it, which wins, and *over* after that."""
    included = (
        f"  <!-- What follows wins over what stands above: change a setting of all daemons in etc/{CLIENT}. -->\n"
        f'  <xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{escape(str(layout.conf(CLIENT) / name))}"/>\n'
    )
    return text.replace(_END, f"{included}{_lines(over)}{_END}")


def client_settings(rm_ports: Sequence[int]) -> dict[str, str]:
    """Return where the ResourceManager listens, and how soon to ask a silent one again."""
    addresses = {
        f"yarn.resourcemanager{kind}.address": f"127.0.0.1:{port}"
        for kind, port in zip(RM_PORTS, rm_ports, strict=True)
    }
    return {
        "yarn.resourcemanager.hostname": "127.0.0.1",
        **addresses,
        "yarn.resourcemanager.connect.retry-interval.ms": "200",
        "yarn.client.application-client-protocol.poll-interval-ms": "50",
    }


def _common_files(plan: ClusterPlan, layout: Layout) -> dict[str, str]:
    core = {
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": str(layout.state / "hadoop"),
        "ipc.client.connect.retry.interval": "100",
    }
    types = {"yarn.resource-types": ",".join(("yarn.io/gpu", *plan.resource_types))}
    if plan.share_per_gpu:
        types["yarn.resource-types"] += f",{SHARE}"
        types[f"yarn.resource-types.{SHARE}.maximum-allocation"] = str(MAX_GPUS * plan.share_per_gpu)
    return {
        "core-site.xml": render_configuration(core),
        RESOURCE_TYPES: render_configuration(types),
        "log4j.properties": _LOG4J,
    }


def _site_settings(plan: ClusterPlan, layout: Layout) -> dict[str, str]:
    """Return what every daemon and client has to know alike."""
    classpath = f"$HADOOP_CONF_DIR,{layout.lib}/*,$HADOOP_COMMON_HOME/share/hadoop/common/lib/*"
    return {
        "yarn.application.classpath": classpath,
        "gpusage.daemon.socket": str(layout.run / "gpusaged.sock"),
        "gpusage.switch-file": str(layout.etc / "off"),
        **plan.site_settings,
    }


def _rm_settings(layout: Layout, ports: Sequence[int]) -> dict[str, str]:
    """Return the ResourceManager's settings: it forgets nothing when killed, and begins to work at once."""
    rm, state = "yarn.resourcemanager", layout.state
    package = "org.apache.hadoop.yarn.server.resourcemanager"
    return {
        **client_settings(ports),
        f"{rm}.scheduler.class": f"{package}.scheduler.capacity.CapacityScheduler",
        f"{rm}.nodemanagers.heartbeat-interval-ms": "200",
        f"{rm}.recovery.enabled": "true",
        f"{rm}.work-preserving-recovery.enabled": "true",
        f"{rm}.work-preserving-recovery.scheduling-wait-ms": "0",
        f"{rm}.store.class": f"{package}.recovery.FileSystemRMStateStore",
        f"{rm}.fs.state-store.uri": f"file://{state}/rm",
        "yarn.scheduler.minimum-allocation-mb": "32",
        "yarn.scheduler.maximum-allocation-mb": str(_NODE_MEMORY_MIB),
        "yarn.scheduler.include-port-in-node-name": "true",
        "yarn.node-labels.enabled": "true",
        "yarn.node-labels.fs-store.root-dir": f"file://{state}/labels",
        "yarn.node-attribute.fs-store.root-dir": f"file://{state}/attributes",
    }


def _node_settings(plan: ClusterPlan, layout: Layout, node: SandboxNode, ports: Sequence[int]) -> dict[str, str]:
    """Return one NodeManager's settings; memory and cores are claimed, not there, and containers outlive it."""
    nm = "yarn.nodemanager"
    state = layout.state / node.name
    addresses = {f"{nm}{kind}.address": f"127.0.0.1:{port}" for kind, port in zip(NODE_PORTS, ports, strict=True)}
    offered = {SHARE: node.gpu_count * plan.share_per_gpu, "yarn.io/gpu": plan.whole_gpus}

    return {
        **addresses,
        **{f"{nm}.resource-type.{name}": str(count) for name, count in offered.items() if count and node.gpu_count},
        **_gpu_memory(node),
        f"{nm}.resource.memory-mb": str(_NODE_MEMORY_MIB),
        f"{nm}.resource.cpu-vcores": str(_NODE_CORES),
        f"{nm}.local-dirs": f"{state}/local",
        f"{nm}.log-dirs": str(layout.container_logs(node.name)),
        f"{nm}.delete.debug-delay-sec": "3600",
        f"{nm}.recovery.enabled": "true",
        f"{nm}.recovery.supervised": "true",
        f"{nm}.recovery.dir": f"{state}/recovery",
        f"{nm}.vmem-check-enabled": "false",
        f"{nm}.pmem-check-enabled": "false",
        f"{nm}.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        f"{nm}.sleep-delay-before-sigkill.ms": "250",
        f"{nm}.admin-env": f"{MARK}={layout.folder}",
        "yarn.log-aggregation-enable": "false",
    }


def _gpu_memory(node: SandboxNode) -> dict[str, str]:
    """Return the setting with the memory of a node's GPUs, because there is no driver to read it from."""
    try:
        gpu = builtin_catalogue().find(node.gpu_type)
    except DeviceError:
        return {}
    return {"gpusage.node.gpu-memory-mib": str(int(gpu.memory_bytes // MIB))}


def _scheduler_settings(plan: ClusterPlan) -> Iterator[tuple[str, str]]:
    """Yield the capacity scheduler's settings: every queue may use everything, in every label."""
    root = "yarn.scheduler.capacity.root"
    yield "yarn.scheduler.capacity.resource-calculator", _PLAIN_CALCULATOR
    yield "yarn.scheduler.capacity.maximum-am-resource-percent", "0.9"
    yield "yarn.scheduler.capacity.node-locality-delay", "-1"
    yield f"{root}.queues", ",".join(plan.queues)
    capacities = dict(zip(plan.queues, equal_parts(len(plan.queues)), strict=True))

    for queue, capacity in {root: "100", **{f"{root}.{name}": part for name, part in capacities.items()}}.items():
        yield f"{queue}.capacity", capacity
        yield f"{queue}.maximum-capacity", "100"
        yield f"{queue}.accessible-node-labels", "*"
        for label in plan.labels:
            yield f"{queue}.accessible-node-labels.{label}.capacity", capacity
            yield f"{queue}.accessible-node-labels.{label}.maximum-capacity", "100"
        if queue != root:
            yield f"{queue}.user-limit-factor", "100"
            yield f"{queue}.default-node-label-expression", plan.default_label

    yield from plan.scheduler_settings.items()


def equal_parts(count: int) -> list[str]:
    """Return *count* percentages that make 100 exactly, as the capacity scheduler wants."""
    part = 100_000 // count
    parts = [part] * (count - 1) + [100_000 - part * (count - 1)]
    return [f"{value // 1000}.{value % 1000:03}" for value in parts]


SITE_SETTINGS: Mapping[str, str] = {
    RULES: f"{CLASSES[RULES]},user-group",
    PROCESSORS: CLASSES[PROCESSORS],
    LISTENERS: CLASSES[LISTENERS],
    ALLOCATOR: CLASSES[ALLOCATOR],
    "gpusage.am.heartbeat-ms": "200",
}
SCHEDULER_SETTINGS: Mapping[str, str] = {CALCULATOR: CLASSES[CALCULATOR]}


def with_gpusage(plan: ClusterPlan, jar: Path, mode: SiteMode) -> ClusterPlan:
    """Return *plan* with all of gpusage switched on."""
    return replace(
        plan,
        jar=jar,
        mode=mode,
        site_settings={**SITE_SETTINGS, **plan.site_settings},
        scheduler_settings={**SCHEDULER_SETTINGS, **plan.scheduler_settings},
    )
