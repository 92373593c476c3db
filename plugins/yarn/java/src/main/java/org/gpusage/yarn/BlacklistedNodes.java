// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import org.apache.hadoop.yarn.api.records.NodeId;

/**
 * The nodes on which a master wants no container for a while: they refused one, or do not answer.
 *
 * <p>The while is twice as long each time: a request that is served and refused again and again never waits long enough to go to the next
 * generation.
 */
final class BlacklistedNodes {
  private static final long PERIOD_NS = TimeUnit.SECONDS.toNanos(10); // at first
  private static final long MOST_PERIOD_NS = TimeUnit.SECONDS.toNanos(80);

  private final BiConsumer<List<String>, List<String>> blacklist;
  private final Map<NodeId, Long> untilNs = new HashMap<>();
  private final Map<NodeId, Long> periodsNs = new HashMap<>();

  /**
   * Avoid none so far.
   *
   * @param blacklist takes the names of nodes to be avoided, and of those to be avoided no more
   */
  BlacklistedNodes(BiConsumer<List<String>, List<String>> blacklist) {
    this.blacklist = blacklist;
  }

  void add(NodeId node, long nowNs) {
    long periodNs = periodsNs.merge(node, PERIOD_NS, (before, first) -> Math.min(2 * before, MOST_PERIOD_NS));
    untilNs.put(node, nowNs + periodNs);
    blacklist.accept(names(node), Collections.emptyList());
  }

  /** Stop avoiding nodes that were avoided for long enough. */
  void removeExpired(long nowNs) {
    for (NodeId node : new ArrayList<>(untilNs.keySet())) {
      if (nowNs - untilNs.get(node) > 0) {
        untilNs.remove(node);
        blacklist.accept(Collections.emptyList(), names(node));
      }
    }
  }

  /** Return both names by which a ResourceManager may know {@code node}: with its port or without. Its own settings decide. */
  private static List<String> names(NodeId node) {
    return Arrays.asList(node.getHost(), node.toString());
  }
}
