// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.gpusage.yarn.GpuShareResourceCalculatorTest.vector;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceContext;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.QueueConfigurations;
import org.apache.hadoop.yarn.api.records.QueueInfo;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMDelegatedNodeLabelsUpdater;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMNodeLabelsManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.util.Records;
import org.apache.hadoop.yarn.util.resource.Resources;
import org.junit.jupiter.api.Test;

class NodeLabelsTest {
  private static final Resource MASTER = vector(64, 1, 0, 0);
  private static final Resource SHARE = vector(64, 1, 0, 50);
  private static final Set<String> NONE = Collections.emptySet();

  /** How often the GPUs of the node were counted. */
  private static int counted;

  @Test
  void aNodeWhoseLabelTheSchedulerHasNotHeardOfYetIsNotWithoutOne() {
    RMContext labelled = manager(Collections.singleton("v100"), NONE);
    assertFalse(NodeLabels.isOpenUnlabelled(labelled, "default", MASTER), "a master sent there would wait for ever");
    List<String> roomy = NodeLabels.roomyFirst(labelled, Arrays.asList("a100", "v100"), SHARE);
    assertEquals(Arrays.asList("v100", "a100"), roomy);
    assertTrue(NodeLabels.isOpenUnlabelled(manager(NONE, Collections.singleton("v100")), "default", MASTER), "and whose label was taken off");
  }

  @Test
  void aMasterGoesToANodeWhoseLabelMayBeDueOnlyIfItHasRoomNow() {
    Resource large = vector(8192, 33, 0, 0);
    Resource fitting = vector(8192, 32, 0, 0);
    for (Resource held : Arrays.asList(vector(0, 0, 0, 0), MASTER)) {
      boolean hasRoom = held != MASTER;
      assertTrue(NodeLabels.isOpenUnlabelled(manager(NONE, NONE, held, 0), "default", fitting), "no provider");
      assertEquals(hasRoom, NodeLabels.isOpenUnlabelled(manager(NONE, NONE, held, 0, provider()), "default", fitting));
      assertTrue(NodeLabels.isOpenUnlabelled(manager(NONE, NONE, held, 1, provider()), "default", fitting), "labels have come");
      assertFalse(NodeLabels.isOpenUnlabelled(manager(NONE, NONE, held, 1, provider()), "default", large));
    }
  }

  @Test
  void aLabelInWhichTheQueueCanNeverHaveEnoughIsChosenOnlyWhereThereIsNoOther() {
    RMContext rm = manager(NONE, NONE, vector(0, 0, 0, 0), 1);
    List<String> both = Arrays.asList("a100", "v100");
    assertEquals(both, NodeLabels.usable(rm, "default", both, vector(64, 1, 0, 40)));
    assertEquals(Collections.singletonList("v100"), NodeLabels.usable(rm, "default", both, SHARE));
    assertEquals(both, NodeLabels.usable(rm, "default", both, vector(64, 1, 0, 100)), "nor any other");
  }

  @Test
  void theGpusOfANodeWithAnotherLabelAreNotCounted() {
    RMContext rm = manager(Collections.singleton("v100"), NONE);
    counted = 0;
    NodeLabels.roomyFirst(rm, Collections.singletonList("a100"), SHARE);
    assertEquals(0, counted);
    NodeLabels.roomyFirst(rm, Collections.singletonList("v100"), SHARE);
    assertEquals(1, counted);
  }

  @Test
  void aClientsRequestsAreRememberedOnlyWhileLabelsAreDue() {
    RMApp application = ProcessorTest.answering(RMApp.class, "getApplicationSubmissionContext", Records.newRecord(ApplicationSubmissionContext.class));
    for (int active = 0; active < 2; active++) {
      GpuShareProcessor processor = new GpuShareProcessor();
      processor.setConf(new Configuration(false));
      processor.start((ApplicationMasterServiceContext) manager(NONE, NONE, vector(0, 0, 0, 0), active, provider()));
      assertEquals(active == 0, processor.offers(application).areLabelsDue());
    }
  }

  private static RMDelegatedNodeLabelsUpdater provider() {
    return new RMDelegatedNodeLabelsUpdater(null);
  }

  /** Return a ResourceManager with one node: with the labels that its label manager says, and those that its scheduler has heard of. */
  private static RMContext manager(Set<String> labels, Set<String> heard) {
    return manager(labels, heard, vector(0, 0, 0, 0), 0);
  }

  /**
   * Return likewise.
   *
   * @param held what runs on the node
   * @param active how many nodes each of the labels a100 and v100 has; the queue may have a share of 40 with the one, 50 with the other
   * @param provider the ResourceManager's own of labels, if it has one
   */
  private static RMContext manager(Set<String> labels, Set<String> heard, Resource held, int active, RMDelegatedNodeLabelsUpdater... provider) {
    NodeId id = NodeId.newInstance("localhost", 1);
    RMNode node =
        ProcessorTest.answering(
            RMNode.class,
            "getTotalCapability", vector(8192, 32, 0, 200),
            "getNodeID", id,
            "getHostName", "localhost",
            "getState", NodeState.RUNNING,
            "getNodeLabels", labels);
    FiCaSchedulerNode scheduled =
        new FiCaSchedulerNode(node, false, heard) {
          @Override
          public synchronized Resource getUnallocatedResource() {
            return Resources.subtract(getTotalResource(), held);
          }

          @Override
          public synchronized List<RMContainer> getCopiedListOfRunningContainers() {
            counted++;
            return super.getCopiedListOfRunningContainers();
          }
        };
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
            info.setAccessibleNodeLabels(Collections.singleton("*"));
            Map<String, QueueConfigurations> most = new HashMap<>();
            most.put("a100", atMost(40));
            most.put("v100", atMost(50));
            info.setQueueConfigurations(most);
            return info;
          }
        };
    RMNodeLabelsManager manager =
        new RMNodeLabelsManager() {
          @Override
          public Set<String> getClusterNodeLabelNames() {
            return new HashSet<>(Arrays.asList("a100", "v100"));
          }

          @Override
          public int getActiveNMCountPerLabel(String label) {
            return active;
          }
        };
    ConcurrentHashMap<NodeId, RMNode> nodes = new ConcurrentHashMap<>();
    nodes.put(id, node);
    return ProcessorTest.answering(
        RMContext.class,
        "getRMNodes", nodes,
        "getScheduler", scheduler,
        "getNodeLabelManager", manager,
        "getRMDelegatedNodeLabelsUpdater", provider.length == 0 ? null : provider[0],
        "getYarnConfiguration", new Configuration(false));
  }

  private static QueueConfigurations atMost(long share) {
    QueueConfigurations configuration = Records.newRecord(QueueConfigurations.class);
    configuration.setMaxCapacity(1);
    configuration.setEffectiveMaxCapacity(vector(8192, 32, 0, share));
    return configuration;
  }
}
