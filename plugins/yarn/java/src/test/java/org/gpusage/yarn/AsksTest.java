package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;

import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
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
import org.junit.jupiter.api.Test;

class AsksTest {
  private static final Resource MOST = GpuShareResourceCalculatorTest.vector(8192, 32, 8, 100);
  private static final String SHARE = Settings.DEFAULT_SHARE_RESOURCE;

  @Test
  void eachRequestOfOurMasterGetsShareMemoryAndLabel() throws Exception {
    ResourceRequest ask = ask(64, 0, 0, 2);
    ResourceRequest changed = only(asks(true).change(Collections.singletonList(ask), MOST, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(128, 1, 0, 40), changed.getCapability());
    assertEquals("a100", changed.getNodeLabelExpression());
    assertEquals(2, changed.getNumContainers());
    assertEquals(GpuShareResourceCalculatorTest.vector(64, 1, 0, 0), ask.getCapability());
    assertNull(ask.getNodeLabelExpression());
  }

  @Test
  void oneGpuOfAnothersMasterBecomesAShareAndItIsShownItsGpu() throws Exception {
    Asks asks = asks(false);
    ResourceRequest changed = only(asks.change(Collections.singletonList(ask(256, 1, 0, 1)), MOST, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 0, 40), changed.getCapability());
    Container given = container(changed.getCapability());
    Container shown = asks.recognisable(given);
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 1, 40), shown.getResource());
    assertEquals(given.getId(), shown.getId());
    assertEquals(7, shown.getAllocationRequestId());
    assertEquals(0, given.getResource().getResourceValue(Settings.GPU_RESOURCE));
  }

  @Test
  void whereNodesOfferSharesOnlyAWholeGpuIsAShareOfAHundred() throws Exception {
    Asks asks = Asks.unplanned(SHARE, true, null);
    ResourceRequest changed = only(asks.change(Collections.singletonList(ask(256, 1, 0, 1)), MOST, 0));
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 0, 100), changed.getCapability());
    assertNull(changed.getNodeLabelExpression());
    Resource shown = asks.recognisable(container(changed.getCapability())).getResource();
    assertEquals(GpuShareResourceCalculatorTest.vector(256, 1, 1, 100), shown);
    for (ResourceRequest ask : new ResourceRequest[] {ask(64, 0, 0, 1), ask(64, 0, 40, 1), ask(64, 2, 0, 1)}) {
      assertSame(ask, only(asks.change(Collections.singletonList(ask), MOST, 0)));
    }
  }

  @Test
  void anUnplannedApplicationsGpusGoWhereTheSiteSaysAndNothingElseOfItDoes() throws Exception {
    Asks asks = Asks.unplanned(SHARE, false, "t4");
    ResourceRequest ask = ask(256, 2, 0, 1);
    ResourceRequest changed = only(asks.change(Collections.singletonList(ask), MOST, 0));
    assertEquals("t4", changed.getNodeLabelExpression());
    assertEquals(ask.getCapability(), changed.getCapability());
    assertNull(asks.recognisable(container(changed.getCapability())));
    ResourceRequest plain = ask(256, 0, 0, 1);
    assertSame(plain, only(asks.change(Collections.singletonList(plain), MOST, 0)));
    assertEquals("t4", only(Asks.unplanned(SHARE, true, "t4").change(Collections.singletonList(ask(256, 1, 0, 1)), MOST, 0)).getNodeLabelExpression());
  }

  @Test
  void whatMayBeTakenBackAtAnyTimeGetsNoShare() throws Exception {
    ResourceRequest ask = ask(64, 1, 0, 1);
    ask.setExecutionTypeRequest(ExecutionTypeRequest.newInstance(ExecutionType.OPPORTUNISTIC));
    assertEquals(ask.getCapability(), only(asks(true).change(Collections.singletonList(ask), MOST, 0)).getCapability());
  }

  @Test
  void aMasterThatAsksAndTakesBackLeavesNothingBehind() throws Exception {
    Asks asks = asks(false);
    for (int number = 0; number < 30_000; number++) {
      ResourceRequest ask = ask(256, 1, 0, number % 2);
      ask.setAllocationRequestId(number);
      asks.change(Collections.singletonList(ask), MOST, 0);
    }
    assertEquals(10_000, asks.keysRemembered(), "half of them were never asked for");
    ResourceRequest mine = ask(256, 1, 0, 1);
    Resource given = only(asks.change(Collections.singletonList(mine), MOST, 0)).getCapability();
    mine.setNumContainers(0);
    asks.change(Collections.singletonList(mine), MOST, 0);
    assertEquals(1, asks.recognisable(container(given)).getResource().getResourceValue(Settings.GPU_RESOURCE), "it was on its way");
    asks.change(Collections.singletonList(ask(64, 0, 0, 1)), MOST, 0);
    assertNull(asks.recognisable(container(given)));
  }

  @Test
  void whatIsNoneOfOursStaysAsItIs() throws Exception {
    ResourceRequest plain = ask(64, 0, 0, 1);
    assertSame(plain, only(asks(false).change(Collections.singletonList(plain), MOST, 0)));
    Resource withoutShares = GpuShareResourceCalculatorTest.vector(8192, 32, 8, 0);
    assertSame(plain, only(asks(true).change(Collections.singletonList(plain), withoutShares, 0)));
  }

  @Test
  void wholeGpusOfAPlannedApplicationGoWhereItsSharesWouldAndStayWhole() throws Exception {
    ResourceRequest two = ask(64, 2, 0, 1);
    ResourceRequest changed = only(asks(false).change(Collections.singletonList(two), MOST, 0));
    assertEquals(two.getCapability(), changed.getCapability());
    assertEquals("a100", changed.getNodeLabelExpression());
  }

  @Test
  void aShareIsNeverShrunkAndNeverMoreThanTheQueuesMaximum() throws Exception {
    ResourceRequest greedy = only(asks(true).change(Collections.singletonList(ask(64, 0, 70, 1)), MOST, 0));
    assertEquals(70, greedy.getCapability().getResourceValue(SHARE));
    Resource little = GpuShareResourceCalculatorTest.vector(100, 32, 8, 30);
    ResourceRequest clamped = only(asks(true).change(Collections.singletonList(ask(64, 0, 0, 1)), little, 0));
    assertEquals(30, clamped.getCapability().getResourceValue(SHARE));
    assertEquals(100, clamped.getCapability().getMemorySize());
  }

  @Test
  void aLabelOfTheMastersOwnStays() throws Exception {
    ResourceRequest ask = ask(64, 0, 0, 1);
    ask.setNodeLabelExpression("v100");
    assertEquals("v100", only(asks(true).change(Collections.singletonList(ask), MOST, 0)).getNodeLabelExpression());
  }

  @Test
  void theLabelByWhichOurMasterBeginsGivesWayToWhatIsKnownHere() throws Exception {
    ResourceRequest ask = ask(64, 0, 0, 1);
    ask.setNodeLabelExpression("h100");
    assertEquals("a100", only(asks(true).change(Collections.singletonList(ask), MOST, 0)).getNodeLabelExpression());
    assertEquals("h100", only(asks(false).change(Collections.singletonList(share(ask)), MOST, 0)).getNodeLabelExpression());
  }

  private static ResourceRequest share(ResourceRequest ask) {
    ask.getCapability().setResourceValue(SHARE, 40);
    return ask;
  }

  @Test
  void whatWaitsTooLongMovesOnAndLaterRequestsFollow() throws Exception {
    Asks asks = asks(true);
    asks.change(Collections.singletonList(ask(64, 0, 0, 3)), MOST, seconds(0));
    assertEquals(0, asks.moved(key -> 3, (label, wanted) -> "h100", seconds(29)).size());
    assertEquals(0, asks.moved(key -> 2, (label, wanted) -> "h100", seconds(30)).size(), "one was served just now");
    ResourceRequest moved = only(asks.moved(key -> 2, (label, wanted) -> "h100", seconds(60)));
    assertEquals("h100", moved.getNodeLabelExpression());
    assertEquals(2, moved.getNumContainers());
    assertEquals(40, moved.getCapability().getResourceValue(SHARE));
    ResourceRequest later = only(asks.change(Collections.singletonList(ask(64, 0, 0, 0)), MOST, seconds(61)));
    assertEquals("h100", later.getNodeLabelExpression());
    assertEquals(0, asks.moved(key -> 0, (label, wanted) -> "a100", seconds(200)).size(), "nothing is open");
  }

  @Test
  void whatIsServedOrHasNowhereToGoStays() throws Exception {
    Asks asks = asks(true);
    asks.change(Collections.singletonList(ask(64, 0, 0, 3)), MOST, seconds(0));
    assertEquals(0, asks.moved(key -> 3, (label, wanted) -> label, seconds(60)).size());
    assertEquals(0, asks.moved(key -> 0, (label, wanted) -> "h100", seconds(200)).size());
  }

  private static Asks asks(boolean every) throws Plan.PlanException {
    String text = "{'v':'1','share':'40','memory_mib':'128','labels':'a100,h100','fallback_after_s':'30'}";
    return new Asks(Plan.parse(PlanTest.encoded(text)), every, SHARE, "a100", new KeptOff(Collections.emptyList()));
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

  private static ResourceRequest only(List<ResourceRequest> asks) {
    assertEquals(1, asks.size());
    return asks.get(0);
  }

  private static long seconds(long count) {
    return TimeUnit.SECONDS.toNanos(count);
  }
}
