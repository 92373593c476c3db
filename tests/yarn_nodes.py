"""What an admin does to a sandbox's nodes while it runs."""

from __future__ import annotations

from gpusage_sandboxes.yarn import Sandbox


def relabel(sandbox: Sandbox, node: str, label: str) -> None:
    """Give *node* another label, or none, and wait until the scheduler knows."""
    name = sandbox.node_id(node)
    sandbox.java_client("org.apache.hadoop.yarn.client.cli.RMAdminCLI", "-replaceLabelsOnNode", f"{name}={label}")

    def is_scheduled() -> bool:
        # The nodes' labels are the label manager's: the scheduler hears of a change later, and then sums up again.
        memory_mb, nodes = dict[str, int](), sandbox.get("nodes")["nodes"]["node"]
        for each in nodes:
            (actual,) = each.get("nodeLabels") or [""]
            memory_mb[actual] = memory_mb.get(actual, 0) + each["totalResource"]["memory"]
            if each["id"] == name and actual != label:
                return False
        root = sandbox.get("scheduler")["scheduler"]["schedulerInfo"]
        partitions = root["capacities"]["queueCapacitiesByPartition"]
        scheduled_mb = {each["partitionName"]: each["effectiveMinResource"]["memory"] for each in partitions}
        return all(scheduled_mb[partition] == memory_mb.get(partition, 0) for partition in ("", label, *memory_mb))

    sandbox.wait_for(is_scheduled, f"the scheduler has {name} in the partition {label!r}")
