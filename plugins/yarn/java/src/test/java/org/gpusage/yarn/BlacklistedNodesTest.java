// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.junit.jupiter.api.Test;

class BlacklistedNodesTest {
  private static final NodeId NODE = NodeId.newInstance("localhost", 1);
  private static final List<String> NAMES = Arrays.asList("localhost", "localhost:1");

  private final List<List<String>> changes = new ArrayList<>();
  private final BlacklistedNodes avoided =
      new BlacklistedNodes((add, remove) -> changes.add(add.isEmpty() ? Collections.singletonList("not " + remove) : add));

  @Test
  void aNodeThatRefusesOrDoesNotAnswerIsAvoidedTwiceAsLongEachTime() {
    avoided.add(NODE, seconds(0));
    avoided.removeExpired(seconds(10));
    assertEquals(1, changes.size());
    avoided.removeExpired(seconds(11));
    assertEquals(2, changes.size());
    avoided.add(NODE, seconds(20));
    avoided.removeExpired(seconds(40));
    assertEquals(3, changes.size());
    avoided.removeExpired(seconds(41));
    assertEquals(4, changes.size());
  }

  @Test
  void preemptionIsNoFailure() {
    assertEquals(ContainerOutcome.PREEMPTED, ContainerOutcome.of(ContainerExitStatus.PREEMPTED, ""));
    assertEquals(ContainerOutcome.PREEMPTED, ContainerOutcome.of(ContainerExitStatus.KILLED_BY_CONTAINER_SCHEDULER, ""));
    assertEquals(ContainerOutcome.LOST, ContainerOutcome.of(ContainerExitStatus.ABORTED, ""));
    assertEquals(ContainerOutcome.LOST, ContainerOutcome.of(-1, "Unable to get local resources"));
    assertEquals(ContainerOutcome.LOST, ContainerOutcome.of(154, "Container exited with a non-zero exit code 154"));
    assertEquals(ContainerOutcome.FAILED, ContainerOutcome.of(154, "Container exited with a non-zero exit code 154. Error file: prelaunch.err."));
    assertEquals(ContainerOutcome.SUCCEEDED, ContainerOutcome.of(0, ""));
    assertEquals(ContainerOutcome.FAILED, ContainerOutcome.of(64, "Error file: prelaunch.err. Last 4096 bytes of stderr : usage: train.py"));
    assertEquals(ContainerOutcome.REFUSED, ContainerOutcome.of(64, "prelaunch.err: " + GpuShareNodeListener.REFUSAL + "has room for share 50"));
  }

  @Test
  void aRefusalWhoseWordsWereLostWithItsNodeManagerIsNoFailure() {
    assertEquals(ContainerOutcome.LOST, ContainerOutcome.of(64, "Container exited with a non-zero exit code 64"));
  }

  private static long seconds(long count) {
    return TimeUnit.SECONDS.toNanos(count);
  }
}
