// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Method;
import java.net.ProtocolFamily;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class DaemonClientTest {
  private static final Map<String, String> FIELDS = Collections.singletonMap("card", "QUJD");
  private static final long LIMIT_MS = 300;
  private static final long PATIENCE_MS = 10_000; // where an answer comes, if only after a busy machine's pause
  private static final long HELD_MS = 30_000; // without its limit, a client would wait as long

  private File folder;
  private File socket;
  private ServerSocketChannel server;

  @BeforeEach
  void makeFolder() throws Exception {
    Assumptions.assumeTrue(!System.getProperty("java.specification.version").matches("1\\.8|9|1[0-5]"));
    folder = Files.createTempDirectory("gpusage").toFile();
    socket = new File(folder, "s");
  }

  @AfterEach
  void close() throws Exception {
    if (server != null) {
      server.close();
    }
    if (folder != null) {
      Files.deleteIfExists(socket.toPath());
      Files.deleteIfExists(folder.toPath());
    }
  }

  @Test
  void anAnswerInPiecesIsPutTogether() throws Exception {
    serve("{\"code\":\"REWRITE\",", "\"set.share\":\"40\"}\n");
    Map<String, String> answer = new DaemonClient(socket, PATIENCE_MS, 0).request(FIELDS);
    assertEquals("40", answer.get("set.share"));
  }

  @ParameterizedTest
  @ValueSource(strings = {"garbage\n", "{}{}\n", "{\"code\":1}\n", "\n", "[1]\n", "{\"code\":\"REWRITE\"", "\u0000\n"})
  void garbageIsAnIoException(String answer) throws Exception {
    serve(answer);
    assertThrows(IOException.class, () -> new DaemonClient(socket, LIMIT_MS, 0).request(FIELDS));
  }

  @Test
  void anAnswerWithoutEndIsAnIoException() throws Exception {
    StringBuilder endless = new StringBuilder();
    for (int i = 0; i < 200_000; i++) {
      endless.append('x');
    }
    serve(endless.toString());
    assertThrows(IOException.class, () -> new DaemonClient(socket, LIMIT_MS, 0).request(FIELDS));
  }

  @Test
  void aDaemonThatHangsCostsTheLimitAndNoMore() throws Exception {
    serve();
    long begunNs = System.nanoTime();
    assertThrows(IOException.class, () -> new DaemonClient(socket, LIMIT_MS, 0).request(FIELDS));
    long tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begunNs);
    assertTrue(tookMs >= LIMIT_MS - 5 && tookMs < HELD_MS / 2, tookMs + " ms");
  }

  @Test
  void aDaemonThatWasSilentIsLeftInPeaceForAWhile() throws Exception {
    serve();
    DaemonClient client = new DaemonClient(socket, LIMIT_MS, HELD_MS);
    assertThrows(IOException.class, () -> client.request(FIELDS));
    IOException rest = assertThrows(IOException.class, () -> client.request(FIELDS));
    assertTrue(rest.getMessage().contains("is not asked"), rest.getMessage());
  }

  @Test
  void soIsOneThatIsNotThere() throws Exception {
    DaemonClient gone = new DaemonClient(socket, LIMIT_MS, HELD_MS);
    assertThrows(IOException.class, () -> gone.request(FIELDS));
    assertTrue(assertThrows(IOException.class, () -> gone.request(FIELDS)).getMessage().contains("is not asked"));
  }

  @ParameterizedTest
  @ValueSource(strings = {"{\"code\":\"KEEP\",\"overdue\":\"1\"}\n", "garbage\n"})
  void oneCardThatItCannotDecideOnKeepsNobodyElseFromIt(String answer) throws Exception {
    serve(answer);
    DaemonClient client = new DaemonClient(socket, PATIENCE_MS, HELD_MS);
    assertThrows(IOException.class, () -> client.request(FIELDS));
    server.close();
    Files.delete(socket.toPath());
    serve("{\"code\":\"KEEP\"}\n");
    assertEquals("KEEP", client.request(FIELDS).get("code"));
  }

  @Test
  void aDecisionThatCameTooLateIsNoAnswer() throws Exception {
    serve("{\"code\":\"KEEP\",\"overdue\":\"1\"}\n");
    assertThrows(IOException.class, () -> new DaemonClient(socket, PATIENCE_MS, 0).request(FIELDS));
  }

  @Test
  void limitAndRestAreHeldWithinBounds() {
    Configuration conf = new Configuration(false);
    assertEquals("200 2000", Settings.daemonLimitMs(conf) + " " + Settings.daemonRestMs(conf));
    conf.set(Settings.DAEMON_LIMIT_MS, "3600000");
    conf.set(Settings.DAEMON_REST_MS, "-1");
    assertEquals("2000 0", Settings.daemonLimitMs(conf) + " " + Settings.daemonRestMs(conf));
  }

  @Test
  void aDaemonThatIsNotThereIsAnIoException() {
    assertThrows(IOException.class, () -> new DaemonClient(socket, LIMIT_MS, 0).request(FIELDS));
    assertFalse(new DaemonClient(socket, LIMIT_MS, 0).ping());
  }

  @Test
  void aPingIsAnswered() throws Exception {
    serve("{\"v\":\"1\",\"code\":\"OK\"}\n");
    assertTrue(new DaemonClient(socket, PATIENCE_MS, 0).ping());
  }

  /** Answer one line with {@code pieces}, then hold the connection open. */
  private void serve(String... pieces) throws Exception {
    Method of = Class.forName("java.net.UnixDomainSocketAddress").getMethod("of", Path.class);
    Method open = ServerSocketChannel.class.getMethod("open", ProtocolFamily.class);
    server = (ServerSocketChannel) open.invoke(null, StandardProtocolFamily.valueOf("UNIX"));
    server.bind((SocketAddress) of.invoke(null, socket.toPath()));
    Thread thread = new Thread(() -> answer(server, pieces), "daemon");
    thread.setDaemon(true);
    thread.start();
  }

  private static void answer(ServerSocketChannel server, String... pieces) {
    try {
      SocketChannel client = server.accept();
      client.read(ByteBuffer.allocate(1 << 16));
      for (String piece : pieces) {
        client.write(ByteBuffer.wrap(piece.getBytes(StandardCharsets.UTF_8)));
        Thread.sleep(20);
      }
      Thread.sleep(HELD_MS);
      client.close();
    } catch (IOException | InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
  }
}
