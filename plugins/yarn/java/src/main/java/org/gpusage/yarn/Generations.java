package org.gpusage.yarn;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.QueueConfigurations;
import org.apache.hadoop.yarn.api.records.QueueInfo;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMNodeLabelsManager;

/** Which of a plan's node labels a queue can really use: YARN refuses whoever names another one. */
final class Generations {
  private Generations() {}

  /** Return those of {@code labels} that exist and are open to {@code queue}; only those with nodes, where any has one. */
  static List<String> usable(RMContext rm, String queue, List<String> labels) {
    RMNodeLabelsManager manager = rm.getNodeLabelManager();
    List<String> known = new ArrayList<>(labels);
    known.retainAll(manager.getClusterNodeLabelNames());
    QueueInfo info = known.isEmpty() ? null : queueInfo(rm, queue);
    if (info != null) {
      known.removeIf(label -> !isOpen(info, label));
    }
    List<String> alive = new ArrayList<>(known);
    alive.removeIf(label -> manager.getActiveNMCountPerLabel(label) == 0);
    return alive.isEmpty() ? known : alive;
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
}
