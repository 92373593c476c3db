// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.gpusage.yarn.GpuShareResourceCalculatorTest.vector;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceContext;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceProcessor;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeLabel;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.QueueInfo;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.ResourceSizing;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMNodeLabelsManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.util.Records;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;
import org.apache.hadoop.yarn.util.resource.Resources;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Where plain clients' GPUs go that name no label, on clusters of several labels. */
class WholeGpuLabelsTest {
  private static final ApplicationId APPLICATION = ApplicationId.newInstance(1, 1);

  private final Map<String, Resource> offered = new TreeMap<>();
  private final List<NodeLabel> labels = new ArrayList<>();
  private final ConcurrentHashMap<NodeId, RMNode> nodes = new ConcurrentHashMap<>();
  private final Map<NodeId, FiCaSchedulerNode> scheduled = new HashMap<>();
  private final Configuration conf = new Configuration(false);

  /** The label that a request names itself. */
  private String named;

  @TempDir Path folder;

  @Test
  void whatYarnServesOnEveryLabelThatIsNotExclusiveStaysAsItIs() throws Exception {
    node("a100", false, vector(8192, 32, 4, 0), false);
    node("v100", false, vector(8192, 32, 4, 0), true);
    assertRequest(1, null, vector(64, 1, 1, 0));
    node("s100", false, vector(8192, 32, 0, 400), true);
    assertRequest(4, null, vector(64, 1, 4, 0));
  }

  @Test
  void moreThanTheNodesOfLabelsThatAreNotExclusiveHaveGoesToSharesAsBefore() throws Exception {
    node("v100", false, vector(8192, 32, 2, 0), true);
    assertRequest(4, null, vector(64, 1, 4, 0));
    node("s100", false, vector(8192, 32, 0, 400), true);
    assertRequest(4, "s100", vector(64, 1, 0, 400));
  }

  @Test
  void theLabelWithRoomNowComesFirst() throws Exception {
    node("a100", true, vector(8192, 32, 4, 0), false);
    node("v100", true, vector(8192, 32, 4, 0), true);
    assertRequest(1, "v100", vector(64, 1, 1, 0));
  }

  @Test
  void aLabelWhoseNodesNeverFitIsNotChosen() throws Exception {
    node("a100", true, vector(8192, 32, 2, 0), true);
    node("v100", true, vector(8192, 32, 4, 0), false);
    assertRequest(4, "v100", vector(64, 1, 4, 0));
  }

  @Test
  void shareNodesThatFitWinOverWholeOnesThatNeverDo() throws Exception {
    node("a100", true, vector(8192, 32, 0, 400), true);
    node("v100", true, vector(8192, 32, 2, 0), true);
    assertRequest(4, "a100", vector(64, 1, 0, 400));
    assertRequest(2, "v100", vector(64, 1, 2, 0));
  }

  @Test
  void whatOnlyAShareNodeOfItsLabelHoldsBecomesShares() throws Exception {
    node("v100", true, vector(8192, 32, 2, 0), true);
    node("v100", true, vector(8192, 32, 0, 400), false);
    assertRequest(2, "v100", vector(64, 1, 2, 0));
    assertRequest(4, "v100", vector(64, 1, 0, 400));
    named = "v100";
    assertRequest(2, "v100", vector(64, 1, 2, 0));
    assertRequest(4, "v100", vector(64, 1, 0, 400));
    assertRequest(5, "v100", vector(64, 1, 5, 0));
  }

  @Test
  void moreThanTheSitesMaximumStaysYarnsToRefuse() throws Exception {
    node("v100", true, vector(8192, 32, 2, 0), true);
    node("v100", true, vector(8192, 32, 0, 400), true);
    node("s100", true, vector(8192, 32, 0, 400), true);
    withMost(2);
    try {
      assertRequest(2, "v100", vector(64, 1, 2, 0));
      assertRequest(4, null, vector(64, 1, 4, 0));
      named = "s100";
      assertRequest(2, "s100", vector(64, 1, 0, 200));
      assertRequest(4, "s100", vector(64, 1, 4, 0));
      withMost(0);
      assertMaster(null, vector(64, 1, 1, 0));
    } finally {
      withMost(Long.MAX_VALUE);
    }
  }

  /** Let a site's setting say how many GPUs a container may have. */
  static void withMost(long gpus) {
    ResourceUtils.getResourceTypesArray()[ResourceUtils.getResourceTypeIndex().get(Settings.GPU_RESOURCE)].setMaximumAllocation(gpus);
  }

  @Test
  void oneWithPlacementConstraintsBecomesSharesWhereAnyLabelOffersTheseAlone() throws Exception {
    node("v100", false, vector(8192, 32, 4, 0), true);
    assertEquals(vector(64, 1, 1, 0), constrained());
    node("a100", false, vector(8192, 32, 0, 400), true);
    assertEquals(vector(64, 1, 0, 100), constrained());
  }

  @Test
  void aMasterThatAsksForAGpuItselfGetsTheLabelOfWholeOnes() {
    node("a100", true, vector(8192, 32, 0, 400), true);
    assertMaster("a100", vector(64, 1, 0, 100));
    node("v100", true, vector(8192, 32, 4, 0), true);
    assertMaster("v100", vector(64, 1, 1, 0));
  }

  @Test
  void aMasterIsLeftOnLabelsThatAreNotExclusiveOnlyWhereYarnMayServeItThere() {
    node("v100", false, vector(8192, 32, 4, 0), true);
    assertMaster("v100", vector(64, 1, 1, 0));
    conf.setBoolean(YarnConfiguration.AM_ALLOW_NON_EXCLUSIVE_ALLOCATION, true);
    assertMaster(null, vector(64, 1, 1, 0));
  }

  private void assertRequest(long gpus, String label, Resource capability) throws Exception {
    ResourceRequest ask = RequestConverterTest.ask(64, gpus, 0, 1);
    ask.setNodeLabelExpression(named);
    AllocateRequest request = AllocateRequest.newBuilder().askList(Collections.singletonList(ask)).build();
    allocate(request);
    ResourceRequest seen = request.getAskList().get(0);
    assertEquals(Arrays.asList(label, capability), Arrays.asList(seen.getNodeLabelExpression(), seen.getCapability()));
  }

  private Resource constrained() throws Exception {
    ResourceSizing one = ResourceSizing.newInstance(1, vector(64, 1, 1, 0));
    SchedulingRequest ask = SchedulingRequest.newBuilder().allocationRequestId(7).priority(Priority.newInstance(1)).resourceSizing(one).build();
    AllocateRequest request = AllocateRequest.newBuilder().schedulingRequests(Collections.singletonList(ask)).build();
    allocate(request);
    return request.getSchedulingRequests().get(0).getResourceSizing().getResources();
  }

  private void allocate(AllocateRequest request) throws Exception {
    GpuShareProcessor processor = new GpuShareProcessor();
    processor.setConf(conf);
    processor.init((ApplicationMasterServiceContext) manager(), ProcessorTest.answering(ApplicationMasterServiceProcessor.class));
    processor.allocate(ApplicationAttemptId.newInstance(APPLICATION, 1), request, Records.newRecord(AllocateResponse.class));
  }

  private void assertMaster(String label, Resource capability) {
    GpuSharePlacementRule rule = new GpuSharePlacementRule();
    rule.setConf(conf);
    rule.start(manager().getScheduler());
    ApplicationSubmissionContext listed = Records.newRecord(ApplicationSubmissionContext.class);
    listed.setAMContainerResourceRequests(Collections.singletonList(RequestConverterTest.ask(64, 1, 0, 1)));
    rule.convertMasterRequest(listed);
    ResourceRequest seen = listed.getAMContainerResourceRequests().get(0);
    assertEquals(Arrays.asList(label, capability), Arrays.asList(seen.getNodeLabelExpression(), seen.getCapability()));
    ApplicationSubmissionContext plain = Records.newRecord(ApplicationSubmissionContext.class);
    plain.setResource(vector(64, 1, 1, 0));
    rule.convertMasterRequest(plain);
    assertEquals(Arrays.asList(label, capability), Arrays.asList(plain.getNodeLabelExpression(), plain.getResource()));
  }

  private void node(String label, boolean exclusive, Resource total, boolean free) {
    NodeId id = NodeId.newInstance("localhost", 1 + nodes.size());
    Set<String> named = Collections.singleton(label);
    RMNode node =
        ProcessorTest.answering(
            RMNode.class,
            "getTotalCapability", total,
            "getNodeID", id,
            "getHostName", "localhost",
            "getState", NodeState.RUNNING,
            "getNodeLabels", named);
    nodes.put(id, node);
    FiCaSchedulerNode known = new FiCaSchedulerNode(node, false, named);
    if (!free) {
      known.deductUnallocatedResource(total);
    }
    scheduled.put(id, known);
    offered.merge(label, total, Resources::add);
    labels.add(NodeLabel.newInstance(label, exclusive));
  }

  private RMContext manager() {
    conf.set(Settings.SWITCH_FILE, folder.resolve("off").toString());
    conf.set(Settings.DAEMON_SOCKET, folder.resolve("none.sock").toString());
    CapacityScheduler scheduler =
        new CapacityScheduler() {
          @Override
          public FiCaSchedulerNode getSchedulerNode(NodeId id) {
            return scheduled.get(id);
          }

          @Override
          public FiCaSchedulerApp getApplicationAttempt(ApplicationAttemptId attempt) {
            return null;
          }

          @Override
          public FiCaSchedulerNode getNode(NodeId id) {
            return scheduled.get(id);
          }

          @Override
          public Resource getMaximumResourceCapability(String queue) {
            return vector(8192, 32, 4, 400);
          }

          @Override
          public Resource getClusterResource() {
            return vector(0, 0, 0, 0);
          }

          @Override
          public QueueInfo getQueueInfo(String queue, boolean children, boolean recursive) {
            QueueInfo info = Records.newRecord(QueueInfo.class);
            info.setAccessibleNodeLabels(Collections.singleton("*"));
            return info;
          }
        };
    RMNodeLabelsManager manager =
        new RMNodeLabelsManager() {
          @Override
          public Set<String> getClusterNodeLabelNames() {
            return new HashSet<>(offered.keySet());
          }

          @Override
          public List<NodeLabel> getClusterNodeLabels() {
            return labels;
          }

          @Override
          public Resource getResourceByLabel(String label, Resource cluster) {
            return offered.getOrDefault(label, vector(0, 0, 0, 0));
          }

          @Override
          public int getActiveNMCountPerLabel(String label) {
            return 1;
          }
        };
    RMApp application =
        ProcessorTest.answering(
            RMApp.class,
            "getApplicationSchedulingEnvs", Collections.emptyMap(),
            "getApplicationSubmissionContext", Records.newRecord(ApplicationSubmissionContext.class),
            "getQueue", "default",
            "getSubmitTime", Long.MAX_VALUE);
    ConcurrentHashMap<ApplicationId, RMApp> known = new ConcurrentHashMap<>();
    known.put(APPLICATION, application);
    RMContext rm =
        ProcessorTest.answering(
            RMContext.class,
            "getRMApps", known,
            "getRMNodes", nodes,
            "getScheduler", scheduler,
            "getNodeLabelManager", manager,
            "getYarnConfiguration", conf);
    scheduler.setRMContext(rm);
    return rm;
  }
}
