// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.QueueConfigurations;
import org.apache.hadoop.yarn.api.records.QueueInfo;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMNodeLabelsManager;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.util.resource.Resources;

/** Tells which of a plan's node labels a queue can use (YARN refuses requests for any other), and which of them have room. */
final class NodeLabels {
  private NodeLabels() {}

  /**
   * Return those of {@code labels} that exist and are open to {@code queue}; if with any of them its maximum is {@code required} or more, only such, for
   * YARN lets the request wait for ever with the others; and if any of these has nodes, only those with nodes.
   */
  static List<String> usable(RMContext rm, String queue, List<String> labels, Resource required) {
    RMNodeLabelsManager manager = rm.getNodeLabelManager();
    List<String> known = new ArrayList<>(labels);
    known.retainAll(manager.getClusterNodeLabelNames());
    QueueInfo info = known.isEmpty() ? null : queueInfo(rm, queue);
    known.removeIf(label -> info != null && !isOpen(info, label));
    return preferred(preferred(known, label -> info == null || mayHave(info, label, required)), label -> manager.getActiveNMCountPerLabel(label) > 0);
  }

  /** Return those of {@code labels} that meet {@code condition}; all of them if none does. */
  private static List<String> preferred(List<String> labels, Predicate<String> condition) {
    List<String> preferred = labels.stream().filter(condition).collect(Collectors.toList());
    return preferred.isEmpty() ? labels : preferred;
  }

  /** Return {@code labels}, those first where one node has room for {@code required} now: share, memory and cores. */
  static List<String> roomyFirst(RMContext rm, List<String> labels, Resource required) {
    Map<Boolean, List<String>> roomy = labels.stream().collect(Collectors.partitioningBy(label -> hasRoom(rm, label, required)));
    return Stream.concat(roomy.get(true).stream(), roomy.get(false).stream()).collect(Collectors.toList());
  }

  /** Return whether a node with {@code label} has room for {@code required} now. */
  private static boolean hasRoom(RMContext rm, String label, Resource required) {
    String share = Settings.shareResource(rm.getYarnConfiguration());
    return nodes(rm, label, node -> Resources.fitsIn(required, node.getUnallocatedResource())).anyMatch(node -> NodeGpus.hasRoom(node, required, share));
  }

  /** Return whether nodes with {@code label} offer GPUs, in whatever form. */
  static boolean offersGpus(RMContext rm, String label) {
    Resource offered = offered(rm, label);
    return NodeGpus.amount(offered, Settings.shareResource(rm.getYarnConfiguration())) > 0
        || NodeGpus.amount(offered, Settings.GPU_RESOURCE) > 0;
  }

  /** Return whether nodes with {@code label} offer shares, and no GPU of YARN's own. */
  private static boolean offersOnlyShares(RMContext rm, String label) {
    Resource offered = offered(rm, label);
    return NodeGpus.amount(offered, Settings.shareResource(rm.getYarnConfiguration())) > 0
        && NodeGpus.amount(offered, Settings.GPU_RESOURCE) == 0;
  }

  /**
   * Return whether {@code required}, of which a part are GPUs, becomes shares on nodes with {@code label}: they offer shares alone, or none of them has as
   * many GPUs of YARN's own, and one has them as shares.
   */
  static boolean becomesShares(RMContext rm, String label, Resource required) {
    return offersOnlyShares(rm, label)
        || !fits(rm, label, required) && fits(rm, label, RequestConverter.wholeShares(required, Settings.shareResource(rm.getYarnConfiguration())));
  }

  /**
   * Return the label for requests of {@code queue} for {@code required} that name none, of which no node without a label has a GPU; nothing where
   * such nodes have GPUs, or no label has. First come labels with a node that fits {@code required} as it is, then those where it becomes shares, or
   * the other way round if {@code sharesFirst}; of each kind those with room.
   */
  static String labelForGpus(RMContext rm, String queue, Resource required, boolean sharesFirst) {
    if (offersGpus(rm, RMNodeLabelsManager.NO_LABEL)) {
      return "";
    }
    Resource asShares = RequestConverter.wholeShares(required, Settings.shareResource(rm.getYarnConfiguration()));
    List<String> shares = roomyFirst(rm, usable(rm, queue, labels(rm, label -> becomesShares(rm, label, required)), asShares), asShares);
    List<String> whole = roomyFirst(rm, usable(rm, queue, labels(rm, label -> fits(rm, label, required)), required), required);
    Stream<String> labels = sharesFirst ? Stream.concat(shares.stream(), whole.stream()) : Stream.concat(whole.stream(), shares.stream());
    return labels.findFirst().orElse("");
  }

  /** Return whether YARN itself serves requests for {@code required} without a label: on nodes without one, or idle ones of labels not exclusive. */
  static boolean isLeftToYarn(RMContext rm, Resource required) {
    return offersGpus(rm, RMNodeLabelsManager.NO_LABEL)
        || rm.getNodeLabelManager().getClusterNodeLabels().stream().anyMatch(label -> !label.isExclusive() && fits(rm, label.getName(), required));
  }

  private static List<String> labels(RMContext rm, Predicate<String> condition) {
    return rm.getNodeLabelManager().getClusterNodeLabelNames().stream().filter(condition).sorted().collect(Collectors.toList());
  }

  private static boolean fits(RMContext rm, String label, Resource required) {
    return nodes(rm, label, node -> Resources.fitsIn(required, node.getTotalResource())).findAny().isPresent();
  }

  private static Resource offered(RMContext rm, String label) {
    return rm.getNodeLabelManager().getResourceByLabel(label, rm.getScheduler().getClusterResource());
  }

  /** Return whether requests without a label go to nodes without a label, and {@code required} fits such a node; now, if its label may be due. */
  static boolean isOpenUnlabelled(RMContext rm, String queue, Resource required) {
    QueueInfo info = queueInfo(rm, queue);
    if (info == null || info.getMaximumCapacity() <= 0 || !defaultLabel(rm, queue).isEmpty()) {
      return false;
    }
    String none = RMNodeLabelsManager.NO_LABEL;
    return areLabelsDue(rm) ? hasRoom(rm, none, required) : fits(rm, none, required);
  }

  /** Return whether the ResourceManager's own provider of labels has given none to any node: so it is for up to 30 s after a start. */
  static boolean areLabelsDue(RMContext rm) {
    RMNodeLabelsManager manager = rm.getNodeLabelManager();
    return rm.getRMDelegatedNodeLabelsUpdater() != null
        && manager.getClusterNodeLabelNames().stream().allMatch(label -> manager.getActiveNMCountPerLabel(label) == 0);
  }

  /**
   * Return the running nodes with {@code label} that meet {@code condition}. Their labels are the label manager's: the scheduler hears of them later, and
   * a master that is sent to nodes without a label, of which soon there are none, waits for ever.
   */
  private static Stream<SchedulerNode> nodes(RMContext rm, String label, Predicate<SchedulerNode> condition) {
    AbstractYarnScheduler<?, ?> scheduler = (AbstractYarnScheduler<?, ?>) rm.getScheduler();
    return rm.getRMNodes().keySet().stream().map(id -> (SchedulerNode) scheduler.getSchedulerNode(id))
        .filter(node -> node != null && condition.test(node)) // before the labels, which cost the label manager's lock and a set for each node
        .filter(node -> node.getRMNode().getState() == NodeState.RUNNING)
        .filter(node -> label.isEmpty() ? node.getRMNode().getNodeLabels().isEmpty() : node.getRMNode().getNodeLabels().contains(label));
  }

  /** Return the label to which YARN itself sends the requests of {@code queue} that name none; nothing if there is none. */
  static String defaultLabel(RMContext rm, String queue) {
    QueueInfo info = queueInfo(rm, queue);
    String label = info == null ? null : info.getDefaultNodeLabelExpression();
    return label == null ? "" : label.trim();
  }

  private static QueueInfo queueInfo(RMContext rm, String queue) {
    try {
      return queue == null ? null : rm.getScheduler().getQueueInfo(queue, false, false);
    } catch (IOException unknownQueue) {
      return null;
    }
  }

  private static boolean isOpen(QueueInfo queue, String label) {
    Set<String> accessible = queue.getAccessibleNodeLabels();
    boolean named = accessible == null || accessible.contains("*") || accessible.contains(label);
    Map<String, QueueConfigurations> capacities = queue.getQueueConfigurations();
    QueueConfigurations capacity = capacities == null ? null : capacities.get(label);
    return named && (capacity == null || capacity.getMaxCapacity() > 0);
  }

  private static boolean mayHave(QueueInfo queue, String label, Resource required) {
    Map<String, QueueConfigurations> capacities = queue.getQueueConfigurations();
    QueueConfigurations capacity = capacities == null ? null : capacities.get(label);
    return capacity == null || capacity.getEffectiveMaxCapacity() == null || Resources.fitsIn(required, capacity.getEffectiveMaxCapacity());
  }
}
