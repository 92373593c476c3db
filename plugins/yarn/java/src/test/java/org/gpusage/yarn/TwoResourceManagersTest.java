// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.gpusage.yarn.GpuShareResourceCalculatorTest.vector;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AppSchedulingInfo;
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
  private static final Resource HALF = vector(64, 1, 0, 50);

  private final List<RMContainer> running = Arrays.asList(container(75, 0), container(75, 1));
  private final SchedulerNode full = NodeGpusTest.node(vector(8192, 32, 0, 200), running);

  @Test
  void eachAllocatorReservesByItsOwnSchedulersCalculator() throws Exception {
    GpuShareResourceCalculator ours = new GpuShareResourceCalculator();
    ours.setConf(new Configuration(false));
    GpuShareResourceCalculator others = new GpuShareResourceCalculator();
    others.setConf(new Configuration(false));
    GpuSharePlacementAllocator<SchedulerNode> reserving = allocator(ours, "{'v':'1','share':'50'}");
    GpuSharePlacementAllocator<SchedulerNode> passing = allocator(new DominantResourceCalculator(), "{'v':'1','share':'50'}");
    assertTrue(reserving.precheckNode(full, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));
    assertFalse(passing.precheckNode(full, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));

    reserving.getPreferredNodeIterator(new SimpleCandidateNodeSet<>(full)).next();
    assertEquals(0, ours.computeAvailableContainers(full.getUnallocatedResource(), HALF));
    assertEquals(1, others.computeAvailableContainers(full.getUnallocatedResource(), vector(64, 1, 0, 150)), "of nodes it knows nothing");
    assertEquals(4, ours.computeAvailableContainers(vector(8192, 32, 0, 200), HALF), "a queue's, which has the same amounts");
  }

  @Test
  void aTrainingGoesToNoGpuThatItHasAndReservesNoNodeForIt() throws Exception {
    GpuShareResourceCalculator ours = new GpuShareResourceCalculator();
    ours.setConf(new Configuration(false));
    SchedulerNode one = NodeGpusTest.node(vector(8192, 32, 0, 100), Collections.singletonList(container(25, 0)));
    assertTrue(allocator(ours, "{'v':'1','share':'50'}").precheckNode(one, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));
    assertFalse(
        allocator(ours, "{'v':'1','share':'50','apart':'1'}").precheckNode(one, SchedulingMode.IGNORE_PARTITION_EXCLUSIVITY, Optional.empty()));
  }

  private static GpuSharePlacementAllocator<SchedulerNode> allocator(ResourceCalculator calculator, String plan) {
    CapacityScheduler scheduler = new CapacityScheduler();
    scheduler.setResourceCalculator(calculator);
    RMContext rm = ProcessorTest.answering(RMContext.class, "getScheduler", scheduler, "getYarnConfiguration", new Configuration(false));
    Map<String, String> variables = Collections.singletonMap(Plan.VARIABLE, PlanTest.encoded(plan));
    AppSchedulingInfo application =
        new AppSchedulingInfo(ApplicationAttemptId.newInstance(APPLICATION, 1), "alice", null, null, 0, new ResourceUsage(), variables, rm, false);
    SchedulerRequestKey key = SchedulerRequestKey.create(RequestConverterTest.ask(64, 0, 50, 1));
    GpuSharePlacementAllocator<SchedulerNode> allocator = new GpuSharePlacementAllocator<>();
    allocator.initialize(application, key, rm);
    allocator.updatePendingAsk(Collections.singletonList(RequestConverterTest.ask(64, 0, 50, 1)), false);
    return allocator;
  }

  private static RMContainer container(long share, int gpu) {
    return ProcessorTest.answering(
        RMContainer.class,
        "getAllocatedResource", vector(64, 1, 0, share),
        "getAllocationTags", NodeGpus.tags(Collections.singletonList(gpu), 0, false),
        "getApplicationAttemptId", ApplicationAttemptId.newInstance(APPLICATION, 1));
  }
}
