package org.gpusage.yarn;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceBlacklistRequest;

/**
 * The nodes that one application's containers keep off, because they or a job there might become slower than was accepted.
 *
 * <p>No container waits for it: at each heartbeat we look whether another node has room now for what is wanted. Once none has, and after a few
 * seconds in any case, the nodes are like others for good.
 */
final class AvoidedNodes {
  private static final long MOST_NS = TimeUnit.SECONDS.toNanos(10);

  final List<String> names;
  private final Set<String> ownBlacklist = new HashSet<>();
  private boolean applied;
  private boolean ended;
  private long sinceNs;

  /** Keep off the nodes with these {@code names}, as the scheduler knows them. */
  AvoidedNodes(List<String> names) {
    this.names = names;
    ended = names.isEmpty();
  }

  /**
   * Begin or end it in {@code request}, its master's own word about nodes included.
   *
   * @param required what containers are still to have
   * @param anyGpu whether another node has room for one
   */
  void update(AllocateRequest request, List<Resource> required, Predicate<Resource> anyGpu, long nowNs) {
    if (ended) {
      return;
    }
    trackOwnBlacklist(request.getResourceBlacklistRequest());
    if (required.isEmpty() && !applied) {
      return;
    }
    boolean roomy = required.stream().allMatch(anyGpu);
    if (!applied && roomy) {
      applied = true;
      sinceNs = nowNs;
      setBlacklist(request, names, Collections.emptyList());
    } else if (!roomy || nowNs - sinceNs > MOST_NS) {
      end(request);
    }
  }

  private void end(AllocateRequest request) {
    ended = true;
    if (applied) {
      List<String> expired = new ArrayList<>(names);
      expired.removeAll(ownBlacklist);
      setBlacklist(request, Collections.emptyList(), expired);
    }
  }

  /** Remember which nodes the master itself wants no container on. */
  private void trackOwnBlacklist(ResourceBlacklistRequest theirs) {
    if (theirs != null) {
      ownBlacklist.addAll(orEmpty(theirs.getBlacklistAdditions()));
      ownBlacklist.removeAll(orEmpty(theirs.getBlacklistRemovals()));
    }
  }

  private static void setBlacklist(AllocateRequest request, List<String> added, List<String> removed) {
    ResourceBlacklistRequest theirs = request.getResourceBlacklistRequest();
    List<String> additions = new ArrayList<>(added);
    List<String> removals = new ArrayList<>(removed);
    if (theirs != null) {
      additions.addAll(orEmpty(theirs.getBlacklistAdditions()));
      removals.addAll(orEmpty(theirs.getBlacklistRemovals()));
    }
    request.setResourceBlacklistRequest(ResourceBlacklistRequest.newInstance(additions, removals));
  }

  private static List<String> orEmpty(List<String> names) {
    return names == null ? Collections.emptyList() : names;
  }
}
