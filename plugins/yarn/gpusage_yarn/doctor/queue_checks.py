"""The checks of `gpusage yarn doctor` on node labels and queues: which reach GPUs, and with how many masters."""

from __future__ import annotations

from gpusage.cli.admin import Finding, failed, passed, warned
from gpusage_yarn.cluster.queues import MASTER_MIB, Queue
from gpusage_yarn.cluster.snapshot import ClusterSnapshot
from gpusage_yarn.doctor.inspection import Inspection
from gpusage_yarn.share_plan import WHOLE_GPU


def node_labels(name: str, inspection: Inspection) -> Finding:
    """Check that nodes with GPUs have labels, named after GPUs."""
    snapshot = inspection.snapshot
    bare = [node.name for node in snapshot.nodes if node.total.share and not node.label] if snapshot else []
    if inspection.settings.get("yarn.node-labels.enabled", "true") != "true" and not (
        snapshot and snapshot.assumed_type
    ):
        todo = (
            "set gpu_type in [yarn] of gpusage.toml if all GPUs are of one type; else "
            "in yarn-site.xml: yarn.node-labels.enabled=true, yarn.node-labels.fs-store.root-dir=hdfs://.../labels; "
            "then restart the ResourceManager"
        )
        return failed(name, "they are not enabled", todo)
    if bare:
        todo = (
            "name each GPU type (one alone: gpu_type in [yarn] of gpusage.toml): yarn rmadmin -addToClusterNodeLabels "
            "'v100(exclusive=false),a100(exclusive=false)' (an exclusive label, YARN's default, keeps jobs that name "
            f"no label off its nodes); yarn rmadmin -replaceLabelsOnNode '{bare[0]}=v100'"
        )
        return failed(name, f"{len(bare)} nodes with GPUs have none: {', '.join(bare[:5])}", todo)

    pools = inspection.cluster.pools if inspection.cluster else ()
    strange = [pool.site_type for pool in pools if pool.gpu is None]
    if strange:
        todo = "name them after GPUs as `gpusage gpus` has them, or add them with a plugin's describe_gpus"
        return warned(name, f"not in the catalogue: {', '.join(strange)}", todo)
    return passed(name, ", ".join(f"{pool.site_type}: {pool.gpu_count} GPUs" for pool in pools) or "no GPU")


def queues(name: str, inspection: Inspection) -> Finding:
    """Check that queues reach the labels, and have shares there."""
    snapshot = inspection.snapshot
    if snapshot is None:
        return warned(name, "they are not known", "fix the ResourceManager first")
    labels = sorted({node.label for node in snapshot.nodes if node.total.share and node.label})
    closed = [(queue.path, label) for label in labels for queue in snapshot.queues if not queue.is_accessible(label)]

    unreachable = [label for label in labels if not any(queue.is_accessible(label) for queue in snapshot.queues)]
    if unreachable:
        label = unreachable[0]
        todo = (
            "in capacity-scheduler.xml, of root and of each queue Q: yarn.scheduler.capacity.root.Q."
            f"accessible-node-labels=*, yarn.scheduler.capacity.root.Q.accessible-node-labels.{label}.capacity=100 "
            "(100 in all); then yarn rmadmin -refreshQueues"
        )
        return failed(name, f"no queue has capacity in {', '.join(unreachable)}", todo)

    without = [(queue, label) for queue in snapshot.queues for label in labels if queue.missing.get(label)]
    if without:
        queue, label = without[0]
        others = f", nor have {len(without) - 1} others" if len(without) > 1 else ""
        observation = f"{queue.path} has absolute resources in {label}, and no shares among them{others}"
        todo = (
            f"in capacity-scheduler.xml, and likewise in absolute queues above it: {'; '.join(queue.missing[label])}; "
            "then yarn rmadmin -refreshQueues"
        )
        return failed(name, observation, todo)

    if closed:
        gaps = ", ".join(f"{queue} not in {label}" for queue, label in closed[:5])
        return passed(name, f"{len(snapshot.queues)}; {gaps}")
    return passed(name, f"{len(snapshot.queues)}, each with capacity in every label")


def masters(name: str, inspection: Inspection) -> Finding:
    """Tell queues in which fewer masters run at once than the queue has GPUs."""
    snapshot = inspection.snapshot
    if snapshot is None:
        return warned(name, "they are not known", "fix the ResourceManager first")

    # YARN rounds a master up to its least allocation.
    least = int(inspection.settings.get("yarn.scheduler.minimum-allocation-mb", "1024"))
    counts_by_queue = []
    for queue in snapshot.queues:
        labels = sorted({node.label for node in snapshot.nodes if queue.is_accessible(node.label)})
        counts = {label: masters_at_once(snapshot, queue, label, max(MASTER_MIB, least)) for label in labels}
        gpus = sum(node.total.share for node in snapshot.nodes if queue.is_accessible(node.label)) // WHOLE_GPU
        if sum(counts.values()) < gpus:
            each = ", ".join(f"{count} on {label or 'nodes without a label'}" for label, count in counts.items())
            todo = (
                "raise yarn.scheduler.capacity.maximum-am-resource-percent (0.1 where it is not set), of all queues "
                "or of this one; then yarn rmadmin -refreshQueues"
            )
            return warned(name, f"{queue.path} runs few applications at once for its {gpus} GPUs: {each}", todo)
        counts_by_queue.append(f"{queue.path}: {sum(counts.values())} at once")
    return passed(name, ", ".join(counts_by_queue[:5]))


def masters_at_once(snapshot: ClusterSnapshot, queue: Queue, label: str, memory_mib: int) -> int:
    """Return how many masters of applications *queue* is sure to run at once on nodes with *label*; at least one."""
    # A queue is sure of its own capacity; what it may borrow is nobody's promise.
    part = queue.capacity.get(label, 0) / 100 * queue.masters.get(label, 100) / 100
    nodes = snapshot.nodes_with_label(label)
    memory = sum(node.total.memory_mib for node in nodes) * part / memory_mib
    return max(int(min(memory, sum(node.total.vcores for node in nodes) * part)), 1 if nodes else 0)
