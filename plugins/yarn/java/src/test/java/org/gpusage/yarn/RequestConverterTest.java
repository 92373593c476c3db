// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.ExecutionTypeRequest;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.ResourceSizing;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.junit.jupiter.api.Test;

class RequestConverterTest {
  private static final Resource MOST = GpuShareResourceCalculatorTest.vector(8192, 32, 8, 100);
  private static final String SHARE = Settings.DEFAULT_SHARE_RESOURCE;

  private static boolean registered = true;

  /** A cluster whose nodes with label v100 offer shares alone, and whose nodes without a label have no GPU. */
  private static final Offers SHARES =
      new Offers() {
        @Override
        public boolean offersGpus(String label) {
          return registered && !label.isEmpty();
        }

        @Override
        public boolean becomesShares(String label, Resource required) {
          return registered && label.equals("v100");
        }

        @Override
        public String label(Resource required, boolean constrained) {
          return registered ? "v100" : "";
        }
      };

  @Test
  void eachRequestOfOurMasterGetsShareMemoryAndLabel() throws Exception {
    ResourceRequest ask = ask(64, 0, 0, 2);
    ResourceRequest changed = only(converter(true).convert(Collections.singletonList(ask), MOST, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(128, 1, 0, 40), changed.getCapability());
    assertEquals("a100", changed.getNodeLabelExpression());
    assertEquals(2, changed.getNumContainers());
    assertEquals(GpuShareResourceCalculatorTest.vector(64, 1, 0, 0), ask.getCapability());
    assertNull(ask.getNodeLabelExpression());
  }

  @Test
  void oneGpuOfAnothersMasterBecomesAShareAndItIsShownItsGpu() throws Exception {
    RequestConverter converter = converter(false);
    ResourceRequest changed = only(converter.convert(Collections.singletonList(ask(256, 1, 0, 1)), MOST, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 0, 40), changed.getCapability());
    Container allocated = container(changed.getCapability());
    Container shown = converter.withRequestedGpus(allocated);
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 1, 40), shown.getResource());
    assertEquals(allocated.getId(), shown.getId());
    assertEquals(7, shown.getAllocationRequestId());
    assertEquals(0, allocated.getResource().getResourceValue(Settings.GPU_RESOURCE));
  }

  @Test
  void whereNodesOfferSharesOnlyAWholeGpuIsAShareOfAHundred() throws Exception {
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, SHARES);
    ResourceRequest changed = only(converter.convert(Collections.singletonList(ask(256, 1, 0, 1)), MOST, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 0, 100), changed.getCapability());
    assertEquals("v100", changed.getNodeLabelExpression(), "where no node without a label has a GPU");
    Resource shown = converter.withRequestedGpus(container(changed.getCapability())).getResource();
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 1, 100), shown);
    for (ResourceRequest ask : new ResourceRequest[] {ask(64, 0, 0, 1), ask(64, 0, 40, 1)}) {
      assertSame(ask, only(converter.convert(Collections.singletonList(ask), MOST, 0)));
    }
    ResourceRequest several = only(converter.convert(Collections.singletonList(ask(64, 2, 0, 1)), MOST, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(64, 1, 0, 200), several.getCapability());
    ResourceRequest huge = only(converter.convert(Collections.singletonList(ask(64, 1L << 62, 0, 1)), MOST, 0));
    assertTrue(huge.getCapability().getResourceValue(SHARE) > MOST.getResourceValue(SHARE), "which YARN refuses, as it does without us");
    ResourceRequest anyGpu = ask(64, 1, 0, 1);
    anyGpu.setNodeLabelExpression("t4"); // whose nodes offer yarn.io/gpu
    assertSame(anyGpu, only(converter.convert(Collections.singletonList(anyGpu), MOST, 0)));
  }

  /** A cluster that offers shares alone, by the labels of its nodes: at first by none. */
  private static final class Changing implements Offers {
    private final Set<String> offering = new HashSet<>(Collections.singleton(""));
    private final boolean due;

    Changing(boolean due) {
      this.due = due;
    }

    @Override
    public boolean offersGpus(String label) {
      return offering.contains(label);
    }

    @Override
    public boolean becomesShares(String label, Resource required) {
      return offering.contains(label);
    }

    @Override
    public boolean areLabelsDue() {
      return due;
    }

    @Override
    public String label(Resource required, boolean constrained) {
      return offering.contains("") ? "" : "v100";
    }

    void relabel() {
      offering.remove("");
      offering.add("v100");
    }
  }

  @Test
  void whatIsSentWhileLabelsAreDueGetsOneOnceNoNodeWithoutALabelHasAGpu() throws Exception {
    Changing changing = new Changing(true);
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, changing);
    ResourceRequest sent = only(converter.convert(Collections.singletonList(ask(256, 1, 0, 3)), MOST, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 0, 100), sent.getCapability());
    assertNull(sent.getNodeLabelExpression());
    assertEquals(Collections.emptyList(), converter.resolvedRequests(key -> 3, 0));
    changing.offering.remove("");
    assertEquals(Collections.emptyList(), converter.resolvedRequests(key -> 3, 0), "nobody knows yet where they are");
    changing.relabel();
    ResourceRequest again = only(converter.resolvedRequests(key -> 2, 0));
    assertEquals("v100", again.getNodeLabelExpression());
    assertEquals(Arrays.asList(2, sent.getCapability()), Arrays.asList(again.getNumContainers(), again.getCapability()));
    assertEquals(Collections.emptyList(), converter.resolvedRequests(key -> 2, 0));
  }

  @Test
  void whatWaitsStaysWhereNodesWithoutALabelAreMerelyAway() throws Exception {
    Changing changing = new Changing(false);
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, changing);
    converter.convert(Collections.singletonList(ask(256, 1, 0, 3)), MOST, 0);
    changing.relabel();
    assertEquals(Collections.emptyList(), converter.resolvedRequests(key -> 3, 0), "no generation brings it back");
  }

  @Test
  void whatIsTakenBackWhileLabelsAreDueIsNotSentAgain() throws Exception {
    Changing changing = new Changing(true);
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, changing);
    converter.convert(Collections.singletonList(ask(256, 1, 0, 1)), MOST, 0);
    converter.convert(Collections.singletonList(ask(256, 1, 0, 0)), MOST, 0);
    changing.relabel();
    assertEquals(Collections.emptyList(), converter.resolvedRequests(key -> 1, 0));
  }

  @Test
  void aRequestForOneHostAloneLeavesThatForAnyPlaceToBeSentAgain() throws Exception {
    Changing changing = new Changing(true);
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, changing);
    converter.convert(Arrays.asList(at("h1", 1), at("/rack", 1), at(ResourceRequest.ANY, 1)), MOST, 0);
    converter.convert(Collections.singletonList(at("h1", 2)), MOST, 0);
    changing.relabel();
    List<ResourceRequest> again = converter.resolvedRequests(key -> 2, 0);
    assertEquals(
        Arrays.asList("* v100 2", "/rack null 1", "h1 null 2"),
        again.stream().map(each -> each.getResourceName() + " " + each.getNodeLabelExpression() + " " + each.getNumContainers()).sorted().collect(Collectors.toList()));
  }

  private static ResourceRequest at(String place, int containers) {
    ResourceRequest ask = ask(256, 1, 0, containers);
    ask.setResourceName(place);
    return ask;
  }

  @Test
  void whatIsAskedBeforeANodeHasRegisteredBecomesAShareOnceOneHas() throws Exception {
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, SHARES);
    ResourceRequest ask = ask(256, 1, 0, 3);
    registered = false;
    try {
      assertSame(ask, only(converter.convert(Collections.singletonList(ask), MOST, 0)));
      assertEquals(Collections.emptyList(), converter.resolvedRequests(key -> 3, 0));
    } finally {
      registered = true;
    }
    ResourceRequest resolvedRequests = only(converter.resolvedRequests(key -> 2, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 0, 100), resolvedRequests.getCapability());
    assertEquals(2, resolvedRequests.getNumContainers());
    assertEquals("v100", resolvedRequests.getNodeLabelExpression());
    assertEquals(Collections.emptyList(), converter.resolvedRequests(key -> 2, 0));
  }

  @Test
  void aConstrainedRequestIsHeldUntilItsNodesHaveRegistered() {
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, SHARES);
    SchedulingRequest ask = constrained(8, ExecutionType.GUARANTEED);
    registered = false;
    try {
      assertEquals(Collections.emptyList(), converter.convertConstrained(Collections.singletonList(ask)));
    } finally {
      registered = true;
    }
    SchedulingRequest ready = converter.convertConstrained(Collections.emptyList()).get(0);
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 0, 100), ready.getResourceSizing().getResources());
    assertTrue(converter.constrained);
    assertEquals(Collections.emptyList(), converter.convertConstrained(Collections.emptyList()));
  }

  @Test
  void anOpportunisticRequestWithConstraintsGetsNoShareEither() {
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, SHARES);
    SchedulingRequest ask = constrained(8, ExecutionType.OPPORTUNISTIC);
    assertSame(ask, converter.convertConstrained(Collections.singletonList(ask)).get(0));
  }

  private static SchedulingRequest constrained(long id, ExecutionType type) {
    return SchedulingRequest.newBuilder()
        .allocationRequestId(id)
        .priority(Priority.newInstance(1))
        .executionType(ExecutionTypeRequest.newInstance(type))
        .resourceSizing(ResourceSizing.newInstance(1, GpuShareResourceCalculatorTest.vector(256, 1, 1, 0)))
        .build();
  }

  @Test
  void anUnplannedApplicationsGpusGoWhereTheSiteSaysAndNothingElseOfItDoes() throws Exception {
    RequestConverter converter = RequestConverter.unplanned(SHARE, "t4", Offers.NONE);
    ResourceRequest ask = ask(256, 2, 0, 1);
    ResourceRequest changed = only(converter.convert(Collections.singletonList(ask), MOST, 0));
    assertEquals("t4", changed.getNodeLabelExpression());
    assertEquals(ask.getCapability(), changed.getCapability());
    assertNull(converter.withRequestedGpus(container(changed.getCapability())));
    ResourceRequest plain = ask(256, 0, 0, 1);
    assertSame(plain, only(converter.convert(Collections.singletonList(plain), MOST, 0)));
    assertEquals("v100", only(RequestConverter.unplanned(SHARE, "v100", SHARES).convert(Collections.singletonList(ask(256, 1, 0, 1)), MOST, 0)).getNodeLabelExpression());
  }

  @Test
  void gpusThatNoPlanIsForGoToNodesThatOfferThemWhole() throws Exception {
    Offers whole =
        new Offers() {
          @Override
          public String label(Resource required, boolean constrained) {
            return "a100";
          }
        };
    ResourceRequest ask = ask(256, 2, 0, 3);
    RequestConverter converter = RequestConverter.unplanned(SHARE, null, whole);
    ResourceRequest changed = only(converter.convert(Collections.singletonList(ask), MOST, 0));
    assertEquals("a100", changed.getNodeLabelExpression());
    assertEquals(ask.getCapability(), changed.getCapability());
    assertNull(converter.withRequestedGpus(container(changed.getCapability())));
    ask.setNodeLabelExpression("h100");
    assertSame(ask, only(converter.convert(Collections.singletonList(ask), MOST, 0)), "its user names a label");
  }

  @Test
  void whatMayBeTakenBackAtAnyTimeGetsNoShare() throws Exception {
    ResourceRequest ask = ask(64, 1, 0, 1);
    ask.setExecutionTypeRequest(ExecutionTypeRequest.newInstance(ExecutionType.OPPORTUNISTIC));
    assertEquals(ask.getCapability(), only(converter(true).convert(Collections.singletonList(ask), MOST, 0)).getCapability());
  }

  @Test
  void aMasterThatAsksAndTakesBackLeavesNothingBehind() throws Exception {
    RequestConverter converter = converter(false);
    for (int number = 0; number < 30_000; number++) {
      ResourceRequest ask = ask(256, 1, 0, number % 2);
      ask.setAllocationRequestId(number);
      converter.convert(Collections.singletonList(ask), MOST, 0);
    }
    assertEquals(10_000, converter.keysRemembered(), "half of them were never asked for");
    ResourceRequest mine = ask(256, 1, 0, 1);
    Resource allocated = only(converter.convert(Collections.singletonList(mine), MOST, 0)).getCapability();
    mine.setNumContainers(0);
    converter.convert(Collections.singletonList(mine), MOST, 0);
    assertEquals(1, converter.withRequestedGpus(container(allocated)).getResource().getResourceValue(Settings.GPU_RESOURCE), "it was on its way");
    converter.convert(Collections.singletonList(ask(64, 0, 0, 1)), MOST, 0);
    assertNull(converter.withRequestedGpus(container(allocated)));
  }

  @Test
  void whatIsNoneOfOursStaysAsItIs() throws Exception {
    ResourceRequest plain = ask(64, 0, 0, 1);
    assertSame(plain, only(converter(false).convert(Collections.singletonList(plain), MOST, 0)));
    Resource withoutShares = GpuShareResourceCalculatorTest.vector(8192, 32, 8, 0);
    assertSame(plain, only(converter(true).convert(Collections.singletonList(plain), withoutShares, 0)));
  }

  @Test
  void wholeGpusOfAPlannedApplicationGoWhereItsSharesWouldAndStayWhole() throws Exception {
    ResourceRequest two = ask(64, 2, 0, 1);
    ResourceRequest changed = only(converter(false).convert(Collections.singletonList(two), MOST, 0));
    assertEquals(two.getCapability(), changed.getCapability());
    assertEquals("a100", changed.getNodeLabelExpression());
  }

  @Test
  void aShareIsNeverShrunkAndWhatIsMoreThanTheQueuesMaximumIsForYarnToRefuse() throws Exception {
    ResourceRequest greedy = only(converter(true).convert(Collections.singletonList(ask(64, 0, 70, 1)), MOST, 0));
    assertEquals(70, greedy.getCapability().getResourceValue(SHARE));
    Resource little = GpuShareResourceCalculatorTest.vector(100, 32, 8, 30);
    ResourceRequest ours = only(converter(true).convert(Collections.singletonList(ask(64, 0, 0, 1)), little, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(128, 1, 0, 40), ours.getCapability());
    ResourceRequest theirs = only(converter(false).convert(Collections.singletonList(ask(64, 1, 0, 1)), little, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(64, 1, 1, 0), theirs.getCapability(), "as its master asked for it");
  }

  @Test
  void aLabelOfTheMastersOwnStays() throws Exception {
    ResourceRequest ask = ask(64, 0, 0, 1);
    ask.setNodeLabelExpression("v100");
    assertEquals("v100", only(converter(true).convert(Collections.singletonList(ask), MOST, 0)).getNodeLabelExpression());
  }

  @Test
  void theLabelByWhichOurMasterBeginsGivesWayToWhatIsKnownHere() throws Exception {
    ResourceRequest ask = ask(64, 0, 0, 1);
    ask.setNodeLabelExpression("h100");
    assertEquals("a100", only(converter(true).convert(Collections.singletonList(ask), MOST, 0)).getNodeLabelExpression());
    assertEquals("h100", only(converter(false).convert(Collections.singletonList(share(ask)), MOST, 0)).getNodeLabelExpression());
  }

  private static ResourceRequest share(ResourceRequest ask) {
    ask.getCapability().setResourceValue(SHARE, 40);
    return ask;
  }

  @Test
  void whatWaitsTooLongMovesOnAndLaterRequestsFollow() throws Exception {
    RequestConverter converter = converter(true);
    converter.convert(Collections.singletonList(ask(64, 0, 0, 3)), MOST, seconds(0));
    assertEquals(0, converter.fallbackRequests(key -> 3, (label, required) -> "h100", seconds(29)).size());
    assertEquals(0, converter.fallbackRequests(key -> 2, (label, required) -> "h100", seconds(30)).size(), "one was served just now");
    ResourceRequest fallbackRequests = only(converter.fallbackRequests(key -> 2, (label, required) -> "h100", seconds(60)));
    assertEquals("h100", fallbackRequests.getNodeLabelExpression());
    assertEquals(2, fallbackRequests.getNumContainers());
    assertEquals(40, fallbackRequests.getCapability().getResourceValue(SHARE));
    ResourceRequest later = only(converter.convert(Collections.singletonList(ask(64, 0, 0, 0)), MOST, seconds(61)));
    assertEquals("h100", later.getNodeLabelExpression());
    assertEquals(0, converter.fallbackRequests(key -> 0, (label, required) -> "a100", seconds(200)).size(), "nothing is open");
  }

  @Test
  void whatIsServedOrHasNowhereToGoStays() throws Exception {
    RequestConverter converter = converter(true);
    converter.convert(Collections.singletonList(ask(64, 0, 0, 3)), MOST, seconds(0));
    assertEquals(0, converter.fallbackRequests(key -> 3, (label, required) -> label, seconds(60)).size());
    assertEquals(0, converter.fallbackRequests(key -> 0, (label, required) -> "h100", seconds(200)).size());
  }

  private static RequestConverter converter(boolean every) throws Plan.PlanException {
    String text = "{'v':'1','share':'40','memory_mib':'128','labels':'a100,h100','fallback_after_s':'30'}";
    return new RequestConverter(Plan.parse(PlanTest.encoded(text)), every, SHARE, "a100", Offers.NONE);
  }

  static ResourceRequest ask(long memory, long gpus, long share, int containers) {
    return ResourceRequest.newBuilder()
        .priority(Priority.newInstance(1))
        .resourceName(ResourceRequest.ANY)
        .capability(GpuShareResourceCalculatorTest.vector(memory, 1, gpus, share))
        .numContainers(containers)
        .allocationRequestId(7)
        .build();
  }

  static Container container(Resource resource) {
    ApplicationAttemptId attempt = ApplicationAttemptId.newInstance(ApplicationId.newInstance(1, 1), 1);
    Container container =
        Container.newInstance(
            ContainerId.newContainerId(attempt, 2),
            NodeId.newInstance("localhost", 1),
            "localhost:2",
            resource,
            Priority.newInstance(1),
            null);
    container.setAllocationRequestId(7);
    return container;
  }

  private static ResourceRequest only(List<ResourceRequest> converter) {
    assertEquals(1, converter.size());
    return converter.get(0);
  }

  private static long seconds(long count) {
    return TimeUnit.SECONDS.toNanos(count);
  }
}
