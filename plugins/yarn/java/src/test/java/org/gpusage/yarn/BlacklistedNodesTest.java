package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class BlacklistedNodesTest {
  private static final NodeId NODE = NodeId.newInstance("localhost", 1);
  private static final List<String> NAMES = Arrays.asList("localhost", "localhost:1");

  private final List<List<String>> changes = new ArrayList<>();
  private final BlacklistedNodes avoided =
      new BlacklistedNodes((add, remove) -> changes.add(add.isEmpty() ? Collections.singletonList("not " + remove) : add), "http");
  private HttpServer server;
  private volatile String free = "";

  @AfterEach
  void stop() {
    if (server != null) {
      server.stop(0);
    }
  }

  @Test
  void aFullNodeIsAvoidedUntilOneOfItsGpusHasRoom() throws Exception {
    serve();
    free = "0=25,1=25";
    avoided.addFull(container(), 50, seconds(0));
    for (int now = 1; now < 200; now++) {
      avoided.removeExpired(seconds(now));
    }
    assertEquals(Collections.singletonList(NAMES), changes, "its room is spread over two GPUs");
    free = "0=25,1=50";
    avoided.removeExpired(seconds(200));
    assertEquals(2, changes.size());
  }

  @Test
  void aNodeThatDoesNotAnswerIsAvoidedTwiceAsLongEachTime() {
    avoided.addUnresponsive(NODE, seconds(0));
    avoided.removeExpired(seconds(10));
    assertEquals(1, changes.size());
    avoided.removeExpired(seconds(11));
    assertEquals(2, changes.size());
    avoided.addUnresponsive(NODE, seconds(20));
    avoided.removeExpired(seconds(40));
    assertEquals(3, changes.size());
    avoided.removeExpired(seconds(41));
    assertEquals(4, changes.size());
  }

  @Test
  void whatANodeSaysIsReadWithCare() {
    assertEquals(OptionalLong.of(100), BlacklistedNodes.parseLargestFree("{\"beans\":[{\"Free\" : \"GPU-8a-9b=40,1=100\"}]}"));
    assertEquals(OptionalLong.empty(), BlacklistedNodes.parseLargestFree("{\"beans\":[{\"Free\" : \"\"}]}"));
    assertEquals(OptionalLong.empty(), BlacklistedNodes.parseLargestFree("<html>"));
    assertEquals(OptionalLong.empty(), BlacklistedNodes.parseLargestFree("\"Free\":\"0=99999999999999999999\""));
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

  private void serve() throws Exception {
    server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    server.createContext(
        "/jmx",
        exchange -> {
          byte[] answer = ("{\"Free\" : \"" + free + "\"}").getBytes(StandardCharsets.UTF_8);
          exchange.sendResponseHeaders(200, answer.length);
          exchange.getResponseBody().write(answer);
          exchange.close();
        });
    server.start();
  }

  private Container container() {
    Container container = RequestConverterTest.container(GpuShareResourceCalculatorTest.vector(64, 1, 0, 50));
    container.setNodeId(NODE);
    container.setNodeHttpAddress("127.0.0.1:" + server.getAddress().getPort());
    return container;
  }

  private static long seconds(long count) {
    return TimeUnit.SECONDS.toNanos(count);
  }
}
