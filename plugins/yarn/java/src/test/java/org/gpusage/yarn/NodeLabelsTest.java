// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.gpusage.yarn.GpuShareResourceCalculatorTest.vector;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.QueueInfo;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.util.Records;
import org.junit.jupiter.api.Test;

class NodeLabelsTest {
  private static final Resource MASTER = vector(64, 1, 0, 0);
  private static final Resource SHARE = vector(64, 1, 0, 50);
  private static final Set<String> NONE = Collections.emptySet();

  @Test
  void aNodeWhoseLabelTheSchedulerHasNotHeardOfYetIsNotWithoutOne() {
    RMContext labelled = manager(Collections.singleton("v100"), NONE);
    assertFalse(NodeLabels.isOpenUnlabelled(labelled, "default", MASTER), "a master sent there would wait for ever");
    List<String> roomy = NodeLabels.roomyFirst(labelled, Arrays.asList("a100", "v100"), SHARE);
    assertEquals(Arrays.asList("v100", "a100"), roomy);
    assertTrue(NodeLabels.isOpenUnlabelled(manager(NONE, Collections.singleton("v100")), "default", MASTER), "and whose label was taken off");
  }

  /** Return a ResourceManager with one node: with the labels that its label manager says, and those that its scheduler has heard of. */
  private static RMContext manager(Set<String> labels, Set<String> heard) {
    NodeId id = NodeId.newInstance("localhost", 1);
    RMNode node =
        ProcessorTest.answering(
            RMNode.class,
            "getTotalCapability", vector(8192, 32, 0, 200),
            "getNodeID", id,
            "getHostName", "localhost",
            "getState", NodeState.RUNNING,
            "getNodeLabels", labels);
    FiCaSchedulerNode scheduled = new FiCaSchedulerNode(node, false, heard);
    CapacityScheduler scheduler =
        new CapacityScheduler() {
          @Override
          public FiCaSchedulerNode getSchedulerNode(NodeId named) {
            return scheduled;
          }

          @Override
          public QueueInfo getQueueInfo(String queue, boolean children, boolean recursive) {
            QueueInfo info = Records.newRecord(QueueInfo.class);
            info.setMaximumCapacity(1);
            return info;
          }
        };
    ConcurrentHashMap<NodeId, RMNode> nodes = new ConcurrentHashMap<>();
    nodes.put(id, node);
    return ProcessorTest.answering(RMContext.class, "getRMNodes", nodes, "getScheduler", scheduler, "getYarnConfiguration", new Configuration(false));
  }
}
