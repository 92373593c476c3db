package org.gpusage.yarn;

import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.NodeId;

/**
 * The nodes on which a master wants no container for now: there was no room for the share, or they do not answer.
 *
 * <p>A full node tells at its /jmx when one of its GPUs has room again. If it does not tell, we ask it for a container again after a while,
 * twice as long each time: a request that is served and refused again and again never waits long enough to go to the next generation.
 */
final class BlacklistedNodes {
  private static final long PERIOD_NS = TimeUnit.SECONDS.toNanos(10); // at first
  private static final long MOST_PERIOD_NS = TimeUnit.SECONDS.toNanos(80);
  private static final long CHECK_NS = TimeUnit.SECONDS.toNanos(1);
  private static final int ANSWER_LIMIT_MS = 500;
  private static final int ANSWER_LIMIT_BYTES = 64 * 1024;
  private static final Pattern FREE = Pattern.compile("\"Free\"\\s*:\\s*\"([^\"]+)\"");
  private static final Pattern PART = Pattern.compile("=([0-9]{1,3})(?:,|$)");

  /** Why, and since when. */
  private static final class Node {
    private long sinceNs;
    private long periodNs;
    private long checkedAtNs;
    private String page;
    private long share;
  }

  private final BiConsumer<List<String>, List<String>> blacklist;
  private final String scheme;
  private final Map<NodeId, Node> nodes = new HashMap<>();
  private final Map<NodeId, Node> previous = new HashMap<>();

  /**
   * Avoid none so far.
   *
   * @param blacklist takes the names of nodes to be avoided, and of those to be avoided no more
   * @param scheme by which nodes are asked
   */
  BlacklistedNodes(BiConsumer<List<String>, List<String>> blacklist, String scheme) {
    this.blacklist = blacklist;
    this.scheme = scheme;
  }

  /** Avoid the node of {@code refused} until it has room for {@code share}. */
  void addFull(Container refused, long share, long nowNs) {
    Node node = add(refused.getNodeId(), nowNs);
    node.page = scheme + "://" + refused.getNodeHttpAddress() + "/jmx?qry=org.gpusage:type=Metrics";
    node.share = share;
  }

  /** Avoid a node that does not answer, for a while. */
  void addUnresponsive(NodeId id, long nowNs) {
    add(id, nowNs).page = null;
  }

  /** Stop avoiding nodes that have room, and nodes that have told nothing for long enough. */
  void removeExpired(long nowNs) {
    List<NodeId> expired = new ArrayList<>();
    long untilNs = System.nanoTime() + CHECK_NS;
    nodes.forEach(
        (id, node) -> {
          if (System.nanoTime() < untilNs && isExpired(node, nowNs)) {
            expired.add(id);
          }
        });
    for (NodeId id : expired) {
      previous.put(id, nodes.remove(id));
      blacklist.accept(Collections.emptyList(), names(id));
    }
  }

  private Node add(NodeId id, long nowNs) {
    Node before = previous.getOrDefault(id, nodes.get(id));
    Node node = new Node();
    node.sinceNs = nowNs;
    node.checkedAtNs = nowNs;
    node.periodNs = before == null ? PERIOD_NS : Math.min(2 * before.periodNs, MOST_PERIOD_NS);
    nodes.put(id, node);
    blacklist.accept(names(id), Collections.emptyList());
    return node;
  }

  private boolean isExpired(Node node, long nowNs) {
    if (node.page != null && nowNs - node.checkedAtNs >= CHECK_NS) {
      node.checkedAtNs = nowNs;
      OptionalLong most = largestFree(node.page);
      if (most.isPresent()) {
        node.sinceNs = nowNs;
        return most.getAsLong() >= node.share;
      }
    }
    return nowNs - node.sinceNs > node.periodNs;
  }

  /** Return how much of one GPU a node can give out, as its {@code page} says; nothing if the page does not say. */
  private static OptionalLong largestFree(String page) {
    try {
      HttpURLConnection connection = (HttpURLConnection) new URL(page).openConnection();
      connection.setConnectTimeout(ANSWER_LIMIT_MS);
      connection.setReadTimeout(ANSWER_LIMIT_MS);
      try (InputStream answer = connection.getInputStream()) {
        byte[] bytes = new byte[ANSWER_LIMIT_BYTES];
        int length = 0;
        for (int read = 0; read >= 0 && length < bytes.length; read = answer.read(bytes, length, bytes.length - length)) {
          length += read;
        }
        return parseLargestFree(new String(bytes, 0, length, StandardCharsets.UTF_8));
      } finally {
        connection.disconnect();
      }
    } catch (IOException | RuntimeException silent) {
      return OptionalLong.empty();
    }
  }

  static OptionalLong parseLargestFree(String answer) {
    Matcher free = FREE.matcher(answer);
    if (!free.find()) {
      return OptionalLong.empty();
    }
    List<Long> parts = new ArrayList<>();
    for (Matcher part = PART.matcher(free.group(1)); part.find(); ) {
      parts.add(Long.valueOf(part.group(1)));
    }
    return parts.stream().mapToLong(Long::longValue).max();
  }

  /** Return both names by which a ResourceManager may know {@code node}: with its port or without. Its own settings decide. */
  private static List<String> names(NodeId node) {
    return Arrays.asList(node.getHost(), node.toString());
  }
}
