// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.gpusage.yarn.GpuShareResourceCalculatorTest.vector;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.AbstractList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AppSchedulingInfo;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.NodeType;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.Queue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceUsage;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.SimpleCandidateNodeSet;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.apache.hadoop.yarn.util.resource.DominantResourceCalculator;
import org.apache.hadoop.yarn.util.resource.ResourceCalculator;
import org.junit.jupiter.api.Test;

/** Two ResourceManagers in one JVM, as in tests of Hadoop's own, know nothing of each other. */
class TwoResourceManagersTest {
  private static final ApplicationId APPLICATION = ApplicationId.newInstance(1, 1);
  private static final ApplicationId OTHER = ApplicationId.newInstance(1, 2);
  private static final String SHARE = "{'v':'1','share':'50'}";
  private static final String TRAINING = "{'v':'1','share':'50','apart':'1'}";
  private static final Resource HALF = vector(64, 1, 0, 50);

  private final List<RMContainer> running = Arrays.asList(container(75, 0), container(75, 1));
  private final SchedulerNode full = NodeGpusTest.node(vector(8192, 32, 0, 200), running);

  @Test
  void eachAllocatorReservesByItsOwnSchedulersCalculator() throws Exception {
    GpuShareResourceCalculator ours = new GpuShareResourceCalculator();
    ours.setConf(new Configuration(false));
    GpuShareResourceCalculator others = new GpuShareResourceCalculator();
    others.setConf(new Configuration(false));
    GpuSharePlacementAllocator<SchedulerNode> reserving = allocator(ours, SHARE);
    GpuSharePlacementAllocator<SchedulerNode> passing = allocator(new DominantResourceCalculator(), SHARE);
    assertTrue(reserving.precheckNode(full, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));
    assertFalse(passing.precheckNode(full, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));

    reserving.getPreferredNodeIterator(new SimpleCandidateNodeSet<>(full)).next();
    assertEquals(0, ours.computeAvailableContainers(full.getUnallocatedResource(), HALF));
    assertEquals(1, others.computeAvailableContainers(full.getUnallocatedResource(), vector(64, 1, 0, 150)), "of nodes it knows nothing");
    assertEquals(4, ours.computeAvailableContainers(vector(8192, 32, 0, 200), HALF), "a queue's, which has the same amounts");
  }

  @Test
  void aNodeWhoseTotalChangedIsKnownWhenItsReservedContainerIsTried() throws Exception {
    GpuShareResourceCalculator ours = new GpuShareResourceCalculator();
    ours.setConf(new Configuration(false));
    GpuSharePlacementAllocator<SchedulerNode> allocator = allocator(ours, SHARE);
    allocator.getPreferredNodeIterator(new SimpleCandidateNodeSet<>(full)).next();
    full.updateTotalResource(vector(4096, 32, 0, 200));
    allocator.getPreferredNodeIterator(new SimpleCandidateNodeSet<>(full)).next(); // all that YARN asks of us then
    assertEquals(0, ours.computeAvailableContainers(full.getUnallocatedResource(), HALF));
  }

  @Test
  void aTrainingGoesToNoGpuThatItHasAndReservesNoNodeForIt() throws Exception {
    GpuShareResourceCalculator ours = new GpuShareResourceCalculator();
    ours.setConf(new Configuration(false));
    for (long offered : new long[] {100, 40}) { // with room by YARN's own sum, and without
      SchedulerNode one = NodeGpusTest.node(vector(8192, 32, 0, offered), Collections.singletonList(container(25, 0)));
      assertTrue(allocator(ours, SHARE).precheckNode(one, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));
      assertFalse(allocator(ours, TRAINING).precheckNode(one, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));
    }
  }

  @Test
  void aTrainingReservesANodeThatOthersFillAsAnyRequestDoes() throws Exception {
    GpuShareResourceCalculator ours = new GpuShareResourceCalculator();
    ours.setConf(new Configuration(false));
    List<RMContainer> others = Arrays.asList(container(75, 0, OTHER), container(75, 1, OTHER));
    SchedulerNode filled = NodeGpusTest.node(vector(8192, 32, 0, 200), others);
    assertTrue(allocator(ours, TRAINING).precheckNode(filled, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));
    assertFalse(
        allocator(new DominantResourceCalculator(), TRAINING).precheckNode(filled, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));
  }

  @Test
  void aNodeIsLookedAtOnceForEachContainerThatIsAllocated() throws Exception {
    GpuSharePlacementAllocator<SchedulerNode> allocator = allocator(new DominantResourceCalculator(), SHARE);
    int[] counts = new int[1];
    List<RMContainer> counted =
        new AbstractList<RMContainer>() {
          @Override
          public RMContainer get(int index) {
            counts[0]++;
            return container(25, 1);
          }

          @Override
          public int size() {
            return 1;
          }
        };
    SchedulerNode node = NodeGpusTest.node(vector(8192, 32, 0, 200), counted);
    SchedulerRequestKey key = SchedulerRequestKey.create(RequestConverterTest.ask(64, 0, 50, 1));
    allocator.updatePendingAsk(Collections.singletonList(RequestConverterTest.ask(64, 0, 50, 3)), false);
    assertTrue(allocator.canAllocate(NodeType.OFF_SWITCH, node));
    Set<String> tags = allocator.allocate(key, NodeType.OFF_SWITCH, node).getSchedulingRequest().getAllocationTags();
    assertEquals(Collections.singleton("gpusage-gpu-1"), tags);
    assertEquals(1, counts[0]);
    assertTrue(allocator.canAllocate(NodeType.OFF_SWITCH, node));
    assertSame(tags, allocator.allocate(key, NodeType.OFF_SWITCH, node).getSchedulingRequest().getAllocationTags(), "made once for a GPU");
  }

  private static GpuSharePlacementAllocator<SchedulerNode> allocator(ResourceCalculator calculator, String plan) {
    CapacityScheduler scheduler = new CapacityScheduler();
    scheduler.setResourceCalculator(calculator);
    RMContext rm = ProcessorTest.answering(RMContext.class, "getScheduler", scheduler, "getYarnConfiguration", new Configuration(false));
    Map<String, String> variables = Collections.singletonMap(Plan.VARIABLE, PlanTest.encoded(plan));
    AppSchedulingInfo application =
        new AppSchedulingInfo(ApplicationAttemptId.newInstance(APPLICATION, 1), "alice", ProcessorTest.answering(Queue.class), null, 0, new ResourceUsage(), variables, rm, false);
    SchedulerRequestKey key = SchedulerRequestKey.create(RequestConverterTest.ask(64, 0, 50, 1));
    GpuSharePlacementAllocator<SchedulerNode> allocator = new GpuSharePlacementAllocator<>();
    allocator.initialize(application, key, rm);
    allocator.updatePendingAsk(Collections.singletonList(RequestConverterTest.ask(64, 0, 50, 1)), false);
    return allocator;
  }

  private static RMContainer container(long share, int gpu) {
    return container(share, gpu, APPLICATION);
  }

  private static RMContainer container(long share, int gpu, ApplicationId application) {
    return ProcessorTest.answering(
        RMContainer.class,
        "getContainer", Container.newInstance(null, null, "", vector(64, 1, 0, share), null, null),
        "getAllocationTags", NodeGpus.tags(Collections.singletonList(gpu), 0, false),
        "getApplicationAttemptId", ApplicationAttemptId.newInstance(application, 1));
  }
}
