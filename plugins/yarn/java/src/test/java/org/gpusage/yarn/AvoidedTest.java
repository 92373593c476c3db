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

class AvoidedTest {
  private static final NodeId NODE = NodeId.newInstance("localhost", 1);
  private static final List<String> NAMES = Arrays.asList("localhost", "localhost:1");

  private final List<List<String>> said = new ArrayList<>();
  private final Avoided avoided =
      new Avoided((add, remove) -> said.add(add.isEmpty() ? Collections.singletonList("not " + remove) : add), "http");
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
      avoided.forgive(seconds(now));
    }
    assertEquals(Collections.singletonList(NAMES), said, "its room is spread over two GPUs");
    free = "0=25,1=50";
    avoided.forgive(seconds(200));
    assertEquals(2, said.size());
  }

  @Test
  void aNodeThatDoesNotAnswerIsAvoidedTwiceAsLongEachTime() {
    avoided.addSilent(NODE, seconds(0));
    avoided.forgive(seconds(10));
    assertEquals(1, said.size());
    avoided.forgive(seconds(11));
    assertEquals(2, said.size());
    avoided.addSilent(NODE, seconds(20));
    avoided.forgive(seconds(40));
    assertEquals(3, said.size());
    avoided.forgive(seconds(41));
    assertEquals(4, said.size());
  }

  @Test
  void whatANodeSaysIsReadWithCare() {
    assertEquals(OptionalLong.of(100), Avoided.mostFreeOf("{\"beans\":[{\"Free\" : \"GPU-8a-9b=40,1=100\"}]}"));
    assertEquals(OptionalLong.empty(), Avoided.mostFreeOf("{\"beans\":[{\"Free\" : \"\"}]}"));
    assertEquals(OptionalLong.empty(), Avoided.mostFreeOf("<html>"));
    assertEquals(OptionalLong.empty(), Avoided.mostFreeOf("\"Free\":\"0=99999999999999999999\""));
  }

  @Test
  void preemptionIsNoFailure() {
    assertEquals(Ending.TAKEN, Ending.of(ContainerExitStatus.PREEMPTED, ""));
    assertEquals(Ending.TAKEN, Ending.of(ContainerExitStatus.KILLED_BY_CONTAINER_SCHEDULER, ""));
    assertEquals(Ending.LOST, Ending.of(ContainerExitStatus.ABORTED, ""));
    assertEquals(Ending.LOST, Ending.of(-1, "Unable to get local resources"));
    assertEquals(Ending.LOST, Ending.of(154, "Container exited with a non-zero exit code 154"));
    assertEquals(Ending.FAILED, Ending.of(154, "Container exited with a non-zero exit code 154. Error file: prelaunch.err."));
    assertEquals(Ending.DONE, Ending.of(0, ""));
    assertEquals(Ending.FAILED, Ending.of(64, "Error file: prelaunch.err. Last 4096 bytes of stderr : usage: train.py"));
    assertEquals(Ending.REFUSED, Ending.of(64, "prelaunch.err: " + GpuShareNodeListener.REFUSAL + "has room for share 50"));
  }

  @Test
  void aRefusalWhoseWordsWereLostWithItsNodeManagerIsNoFailure() {
    assertEquals(Ending.LOST, Ending.of(64, "Container exited with a non-zero exit code 64"));
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
    Container container = AsksTest.container(GpuShareResourceCalculatorTest.vector(64, 1, 0, 50));
    container.setNodeId(NODE);
    container.setNodeHttpAddress("127.0.0.1:" + server.getAddress().getPort());
    return container;
  }

  private static long seconds(long count) {
    return TimeUnit.SECONDS.toNanos(count);
  }
}
