// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.File;
import java.io.IOException;
import java.lang.reflect.Method;
import java.math.BigDecimal;
import java.net.ProtocolFamily;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * One bounded exchange with gpusaged over its Unix socket: one line each way, all within one limit. A daemon that gives no answer is not asked for a while.
 *
 * <p>JDK 16 brought Unix sockets; we reach them by reflection. On an older JDK each ask fails, as if there were no daemon.
 */
final class DaemonClient {
  private static final int ANSWER_LIMIT_BYTES = 64 * 1024;

  private final File socket;
  private final long limitMs;
  private final long backoffNs;
  private volatile long restUntilNs = System.nanoTime();

  DaemonClient(File socket, long limitMs, long restMs) {
    this.socket = socket;
    this.limitMs = limitMs;
    this.backoffNs = TimeUnit.MILLISECONDS.toNanos(restMs);
  }

  /** Return the daemon's answer about a submission with {@code fields}; none, at once, shortly after it has been silent. */
  Map<String, String> request(Map<String, String> fields) throws IOException {
    if (System.nanoTime() - restUntilNs < 0) {
      throw new IOException("gpusaged was silent just now, and is not asked");
    }
    BigDecimal untilS = BigDecimal.valueOf(System.currentTimeMillis() + limitMs, 3);
    String line = "{\"v\":1,\"manager\":\"yarn\",\"until_s\":" + untilS + ",\"fields\":" + FlatJson.write(fields) + "}\n";
    Map<String, String> answer = FlatJson.parse(exchange(line)); // whatever it says of this submission, it answers others
    if (answer.containsKey("overdue")) {
      throw new IOException("gpusaged could not decide within the limit of " + limitMs + " ms");
    }
    return answer;
  }

  /** Ask whether anyone is there. This also loads the classes that the first ask would otherwise wait for. */
  boolean ping() {
    try {
      return "OK".equals(FlatJson.parse(exchange("{\"v\":1,\"op\":\"ping\"}\n")).get("code"));
    } catch (IOException silent) {
      return false;
    }
  }

  private String exchange(String line) throws IOException {
    long deadlineNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limitMs);
    try (SocketChannel channel = open(); Selector selector = Selector.open()) {
      channel.configureBlocking(false);
      SelectionKey key = channel.register(selector, SelectionKey.OP_CONNECT);
      if (!channel.connect(address())) {
        while (!channel.finishConnect()) {
          await(selector, deadlineNs);
        }
      }
      send(channel, selector, key, line, deadlineNs);
      return receive(channel, selector, key, deadlineNs);
    } catch (IOException silent) {
      restUntilNs = System.nanoTime() + backoffNs;
      throw silent;
    }
  }

  private void send(SocketChannel channel, Selector selector, SelectionKey key, String line, long deadlineNs) throws IOException {
    ByteBuffer question = ByteBuffer.wrap(line.getBytes(StandardCharsets.UTF_8));
    key.interestOps(SelectionKey.OP_WRITE);
    while (question.hasRemaining()) {
      if (channel.write(question) == 0) {
        await(selector, deadlineNs);
      }
    }
  }

  private String receive(SocketChannel channel, Selector selector, SelectionKey key, long deadlineNs) throws IOException {
    ByteBuffer answer = ByteBuffer.allocate(ANSWER_LIMIT_BYTES);
    key.interestOps(SelectionKey.OP_READ);
    while (true) {
      int read = channel.read(answer);
      if (read > 0 && answer.get(answer.position() - 1) == '\n') {
        return new String(answer.array(), 0, answer.position(), StandardCharsets.UTF_8);
      }
      if (read < 0 || !answer.hasRemaining()) {
        throw new IOException("gpusaged's answer must be one line of at most " + ANSWER_LIMIT_BYTES + " bytes");
      }
      if (read == 0) {
        await(selector, deadlineNs);
      }
    }
  }

  private void await(Selector selector, long deadlineNs) throws IOException {
    long leftMs = TimeUnit.NANOSECONDS.toMillis(deadlineNs - System.nanoTime());
    if (leftMs <= 0) {
      throw new IOException("gpusaged did not answer within the limit of " + limitMs + " ms");
    }
    selector.select(leftMs);
    selector.selectedKeys().clear();
  }

  private SocketAddress address() throws IOException {
    try {
      Method of = Class.forName("java.net.UnixDomainSocketAddress").getMethod("of", Path.class);
      return (SocketAddress) of.invoke(null, socket.toPath());
    } catch (ReflectiveOperationException tooOld) {
      throw new IOException("Asking gpusaged needs a JDK of 16 or later", tooOld);
    }
  }

  private static SocketChannel open() throws IOException {
    try {
      Method open = SocketChannel.class.getMethod("open", ProtocolFamily.class);
      return (SocketChannel) open.invoke(null, StandardProtocolFamily.valueOf("UNIX"));
    } catch (ReflectiveOperationException | IllegalArgumentException tooOld) {
      throw new IOException("Asking gpusaged needs a JDK of 16 or later", tooOld);
    }
  }
}
