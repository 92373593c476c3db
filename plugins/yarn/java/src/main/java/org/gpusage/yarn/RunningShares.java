package org.gpusage.yarn;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/** Tells who runs beside a new share: a line {@code NODE SHARE NEED} for each container with a share, on nodes that have some of it left. */
final class RunningShares {
  private static final int MOST_LINES = 500;

  private RunningShares() {}

  /** Return those lines, as far as {@code needs} has what the container's application needs; each user's first before anybody's second. */
  static String of(RMContext rm, String share, Map<ApplicationId, String> needs) {
    Map<String, List<String>> lines = new HashMap<>();
    boolean none = needs.isEmpty() || !ResourceUtils.getResourceTypeIndex().containsKey(share);
    AbstractYarnScheduler<?, ?> scheduler = (AbstractYarnScheduler<?, ?>) rm.getScheduler();
    for (RMNode known : rm.getRMNodes().values()) {
      SchedulerNode node = none ? null : scheduler.getSchedulerNode(known.getNodeID());
      if (node == null || node.getUnallocatedResource().getResourceValue(share) == 0) {
        continue;
      }
      for (RMContainer container : node.getCopiedListOfRunningContainers()) {
        ApplicationId application = container.getApplicationAttemptId().getApplicationId();
        String need = needs.getOrDefault(application, "");
        RMApp of = rm.getRMApps().get(application);
        long part = NodeGpus.amount(container.getAllocatedResource(), share);
        if (part > 0 && part < Settings.WHOLE_GPU && !need.isEmpty() && of != null) {
          lines.computeIfAbsent(of.getUser(), user -> new ArrayList<>()).add(known.getNodeID() + " " + part + " " + need + "\n");
        }
      }
    }
    return roundRobin(lines.values());
  }

  /** Return the first {@link #MOST_LINES} of {@code lists}: one of each, then the second of each, and so on. */
  static String roundRobin(Collection<List<String>> lists) {
    StringBuilder lines = new StringBuilder();
    int left = MOST_LINES;
    for (int turn = 0; turn < MOST_LINES && left > 0; turn++) {
      for (List<String> list : lists) {
        if (turn < list.size() && left-- > 0) {
          lines.append(list.get(turn));
        }
      }
    }
    return lines.toString();
  }
}
