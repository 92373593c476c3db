package org.gpusage.yarn;

import static org.gpusage.yarn.GpuShareResourceCalculatorTest.vector;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceBlacklistRequest;
import org.junit.jupiter.api.Test;

class AvoidedNodesTest {
  private static final List<String> NONE = Collections.emptyList();
  private static final List<String> NODES = Arrays.asList("a:1", "b:1");
  private static final List<Resource> ONE = Collections.singletonList(vector(64, 1, 0, 40));

  private final AvoidedNodes avoidedNodes = new AvoidedNodes(NODES);

  @Test
  void nodesAreAvoidedWhileAnotherHasRoom() {
    assertNull(updateBlacklist(Collections.emptyList(), true, 0), "nothing is asked for yet");
    assertEquals(Arrays.asList(NODES, NONE), updateBlacklist(ONE, true, 1));
    assertNull(updateBlacklist(ONE, true, 2));
    assertEquals(Arrays.asList(NONE, NODES), updateBlacklist(ONE, false, 3));
    assertNull(updateBlacklist(ONE, true, 4), "it is over for good");
  }

  @Test
  void whereNoOtherNodeHasRoomNothingIsAvoided() {
    assertNull(updateBlacklist(ONE, false, 0));
    assertNull(updateBlacklist(ONE, true, 1));
  }

  @Test
  void itEndsAfterAWhileInAnyCase() {
    updateBlacklist(ONE, true, 0);
    assertNull(updateBlacklist(ONE, true, 10));
    assertEquals(Arrays.asList(NONE, NODES), updateBlacklist(ONE, true, 11));
  }

  @Test
  void whatTheMasterItselfSaysOfNodesStays() {
    AllocateRequest request = request(Arrays.asList("b:1", "c:1"), NONE);
    avoidedNodes.update(request, ONE, required -> true, 0);
    assertEquals(Arrays.asList("a:1", "b:1", "b:1", "c:1"), request.getResourceBlacklistRequest().getBlacklistAdditions());
    AllocateRequest last = request(NONE, Collections.singletonList("c:1"));
    avoidedNodes.update(last, ONE, required -> false, 1);
    assertEquals(Arrays.asList("a:1", "c:1"), last.getResourceBlacklistRequest().getBlacklistRemovals());
  }

  /** Return what a heartbeat says of nodes, additions and removals; null for nothing. */
  private List<List<String>> updateBlacklist(List<Resource> required, boolean roomy, long nowS) {
    AllocateRequest request = AllocateRequest.newBuilder().build();
    avoidedNodes.update(request, required, each -> roomy, TimeUnit.SECONDS.toNanos(nowS));
    ResourceBlacklistRequest blacklist = request.getResourceBlacklistRequest();
    return blacklist == null ? null : Arrays.asList(blacklist.getBlacklistAdditions(), blacklist.getBlacklistRemovals());
  }

  private static AllocateRequest request(List<String> additions, List<String> removals) {
    return AllocateRequest.newBuilder().resourceBlacklistRequest(ResourceBlacklistRequest.newInstance(additions, removals)).build();
  }
}
