package org.gpusage.yarn;

import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/** Tells who runs beside a new share: a line {@code NODE SHARE NEED} for each container with a share, on nodes that have some of it left. */
final class Company {
  private static final int MOST_LINES = 500;

  private Company() {}

  /** Return those lines, as far as {@code needs} has what the container's application needs. */
  static String of(RMContext rm, String share, Map<ApplicationId, String> needs) {
    StringBuilder lines = new StringBuilder();
    int left = needs.isEmpty() || !ResourceUtils.getResourceTypeIndex().containsKey(share) ? 0 : MOST_LINES;
    AbstractYarnScheduler<?, ?> scheduler = (AbstractYarnScheduler<?, ?>) rm.getScheduler();
    for (RMNode known : rm.getRMNodes().values()) {
      SchedulerNode node = left > 0 ? scheduler.getSchedulerNode(known.getNodeID()) : null;
      if (node == null || node.getUnallocatedResource().getResourceValue(share) == 0) {
        continue;
      }
      for (RMContainer container : node.getCopiedListOfRunningContainers()) {
        String need = needs.getOrDefault(container.getApplicationAttemptId().getApplicationId(), "");
        long part = part(container.getAllocatedResource(), share);
        if (part > 0 && part < Settings.WHOLE_GPU && !need.isEmpty() && left-- > 0) {
          lines.append(known.getNodeID()).append(' ').append(part).append(' ').append(need).append('\n');
        }
      }
    }
    return lines.toString();
  }

  private static long part(Resource resource, String share) {
    return resource == null ? 0 : resource.getResourceValue(share);
  }
}
