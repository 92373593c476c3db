// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.gpusage.yarn.GpuShareResourceCalculatorTest.vector;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.junit.jupiter.api.Test;

class NodeGpusTest {
  private static final String SHARE = Settings.DEFAULT_SHARE_RESOURCE;
  private static final ApplicationId APPLICATION = ApplicationId.newInstance(1, 1);

  private final List<RMContainer> running = new ArrayList<>();

  @Test
  void whatIsFreeInAllIsNoRoomUnlessOneGpuHasIt() {
    run(75, 0);
    run(75, 1);
    assertFalse(NodeGpus.hasRoom(node(2), vector(64, 1, 0, 50), SHARE));
    assertTrue(NodeGpus.hasRoom(node(2), vector(64, 1, 0, 25), SHARE));
    assertTrue(NodeGpus.hasRoom(node(2), vector(64, 1, 0, 0), SHARE), "what wants no share");
    running.remove(0);
    assertEquals(Collections.singletonList(0), NodeGpus.of(node(2), SHARE).choose(50));
  }

  @Test
  void theFullestGpuThatHasRoomIsTaken() {
    run(40, 1);
    assertEquals(Collections.singletonList(1), NodeGpus.of(node(2), SHARE).choose(60));
    assertEquals(Collections.singletonList(0), NodeGpus.of(node(2), SHARE).choose(65));
  }

  @Test
  void severalWholeGpusAreFreeOnesAlone() {
    run(5, 1);
    assertEquals(Arrays.asList(0, 2), NodeGpus.of(node(3), SHARE).choose(200));
    assertEquals(Collections.emptyList(), NodeGpus.of(node(3), SHARE).choose(300));
    run(200, 0, 2);
    assertEquals(Collections.emptyList(), NodeGpus.of(node(3), SHARE).choose(100));
  }

  @Test
  void whatAnEarlierReleaseGaveOutCountsWhereBestFitPutIt() {
    run(60);
    run(60);
    run(40);
    assertEquals(Collections.emptyList(), NodeGpus.of(node(2), SHARE).choose(50));
    assertEquals(1, NodeGpus.of(node(2), SHARE).choose(40).size());
  }

  @Test
  void tagsSayWhichGpusAndHowManyThreads() {
    Set<String> tags = NodeGpus.tags(Arrays.asList(2, 10), 80, true);
    assertEquals(new HashSet<>(Arrays.asList("gpusage-gpu-2", "gpusage-gpu-10", "gpusage-threads-80", "gpusage-apart")), tags);
    assertEquals(Arrays.asList(2, 10), NodeGpus.numbers(tags));
    assertEquals(80, NodeGpus.threads(tags));
    assertTrue(NodeGpus.isApart(tags));
    assertFalse(NodeGpus.isApart(NodeGpus.tags(Arrays.asList(2), 0, false)));
    Set<String> others = new HashSet<>(Arrays.asList("spark", "gpusage-gpu-x", "gpusage-threads-900", "gpusage-gpu-", "gpusage-gpu-12345", "gpusage-threads-0"));
    assertEquals(Collections.emptyList(), NodeGpus.numbers(others));
    assertEquals(0, NodeGpus.threads(others));
    assertEquals(0, NodeGpus.threads(null));
  }

  @Test
  void aPlanThatNobodyCanReadRaisesNoThreadsAndKeepsNoContainerFromItsGpu() throws Exception {
    Map<String, String> plan = new HashMap<>();
    plan.put("v", "1");
    plan.put("share", "40");
    plan.put("threads", "80");
    assertEquals(80, GpuSharePlacementAllocator.plan(Collections.singletonMap(Plan.VARIABLE, Plan.of(plan).toBase64())).get().threads);
    String large = String.join("", Collections.nCopies(1 << 20, "A"));
    for (String unreadable : Arrays.asList("no plan", large, "")) {
      assertFalse(GpuSharePlacementAllocator.plan(Collections.singletonMap(Plan.VARIABLE, unreadable)).isPresent());
    }
  }

  @Test
  void falseTagsTakeNoMoreOfTheNodeThanTheirContainerHas() {
    run(50, 0, 1);
    run(25, 9);
    assertEquals(Collections.singletonList(1), NodeGpus.of(node(2), SHARE).choose(100), "both count on the first");
    Set<String> twice = new HashSet<>(Arrays.asList("gpusage-gpu-1", "gpusage-gpu-01"));
    assertEquals(Collections.singletonList(1), NodeGpus.numbers(twice));
  }

  @Test
  void containersOfOneTrainingHaveAGpuEach() {
    run(25, 0);
    assertEquals(Collections.singletonList(1), NodeGpus.of(node(2), SHARE, APPLICATION).choose(25));
    assertEquals(Collections.singletonList(0), NodeGpus.of(node(2), SHARE, ApplicationId.newInstance(1, 2)).choose(25), "another's");
    run(25, 1);
    assertEquals(Collections.emptyList(), NodeGpus.of(node(2), SHARE, APPLICATION).choose(25));
  }

  @Test
  void aNodeMayOfferAPartOfOneGpu() {
    assertEquals(Collections.singletonList(0), NodeGpus.of(offering(50), SHARE).choose(50));
    assertEquals(Collections.emptyList(), NodeGpus.of(offering(50), SHARE).choose(55));
    assertEquals(Collections.emptyList(), NodeGpus.of(offering(250), SHARE).choose(300));
  }

  @Test
  void whateverComesAndGoesNoGpuIsEverGivenOutBeyondItself() {
    Random random = new Random(7);
    long[] used = new long[4];
    List<long[]> allocations = new ArrayList<>();
    for (int step = 0; step < 2000; step++) {
      long share = 5 * (1 + random.nextInt(20));
      List<Integer> chosen = NodeGpus.of(node(4), SHARE).choose(share);
      assertEquals(chosen.isEmpty(), Arrays.stream(used).noneMatch(each -> each + share <= 100), "room is found where there is some");
      if (!chosen.isEmpty()) {
        run(share, chosen.get(0));
        used[chosen.get(0)] += share;
        allocations.add(new long[] {chosen.get(0), share});
      }
      if (random.nextInt(3) > 0 && !allocations.isEmpty()) {
        int gone = random.nextInt(allocations.size());
        used[(int) allocations.get(gone)[0]] -= allocations.get(gone)[1];
        allocations.remove(gone);
        running.remove(gone);
      }
      assertTrue(Arrays.stream(used).allMatch(each -> each <= 100));
    }
  }

  private void run(long share, Integer... gpus) {
    Set<String> tags = gpus.length == 0 ? null : NodeGpus.tags(Arrays.asList(gpus), 0, false);
    running.add(
        ProcessorTest.answering(
            RMContainer.class,
            "getContainer", Container.newInstance(null, null, "", vector(64, 1, 0, share), null, null),
            "getAllocationTags", tags,
            "getApplicationAttemptId", ApplicationAttemptId.newInstance(APPLICATION, 1)));
  }

  private SchedulerNode node(int gpus) {
    return offering(100L * gpus);
  }

  private SchedulerNode offering(long shares) {
    return node(vector(8192, 32, 0, shares), running);
  }

  static SchedulerNode node(Resource total, List<RMContainer> running) {
    RMNode known =
        ProcessorTest.answering(
            RMNode.class, "getTotalCapability", total, "getNodeID", NodeId.newInstance("localhost", 1), "getHostName", "localhost");
    return new SchedulerNode(known, false) {
      @Override
      public synchronized List<RMContainer> getCopiedListOfRunningContainers() {
        return running;
      }

      @Override
      public void reserveResource(
          SchedulerApplicationAttempt attempt, org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey key, RMContainer container) {}

      @Override
      public void unreserveResource(SchedulerApplicationAttempt attempt) {}
    };
  }
}
