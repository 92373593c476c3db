"""What an admin does to a sandbox's nodes while it runs."""

from __future__ import annotations

from gpusage_sandboxes.yarn import Sandbox


def relabel(sandbox: Sandbox, node: str, label: str) -> None:
    """Give *node* another label, or none, and wait until the scheduler knows."""
    name = sandbox.node_id(node)
    sandbox.java_client("org.apache.hadoop.yarn.client.cli.RMAdminCLI", "-replaceLabelsOnNode", f"{name}={label}")

    def has_label() -> bool:
        (actual,) = [each for each in sandbox.get("nodes")["nodes"]["node"] if each["id"] == name]
        return actual.get("nodeLabels", []) == [label] * bool(label)

    sandbox.wait_for(has_label, f"{name} has the label {label!r}")
