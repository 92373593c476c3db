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
final class KeptOff {
  private static final long MOST_NS = TimeUnit.SECONDS.toNanos(10);

  final List<String> names;
  private final Set<String> refused = new HashSet<>();
  private boolean begun;
  private boolean over;
  private long sinceNs;

  /** Keep off the nodes with these {@code names}, as the scheduler knows them. */
  KeptOff(List<String> names) {
    this.names = names;
    over = names.isEmpty();
  }

  /**
   * Begin or end it in {@code request}, its master's own word about nodes included.
   *
   * @param wanted what containers are still to have
   * @param elsewhere whether another node has room for one
   */
  void change(AllocateRequest request, List<Resource> wanted, Predicate<Resource> elsewhere, long nowNs) {
    if (over) {
      return;
    }
    note(request.getResourceBlacklistRequest());
    if (wanted.isEmpty() && !begun) {
      return;
    }
    boolean roomy = wanted.stream().allMatch(elsewhere);
    if (!begun && roomy) {
      begun = true;
      sinceNs = nowNs;
      say(request, names, Collections.emptyList());
    } else if (!roomy || nowNs - sinceNs > MOST_NS) {
      end(request);
    }
  }

  private void end(AllocateRequest request) {
    over = true;
    if (begun) {
      List<String> forgiven = new ArrayList<>(names);
      forgiven.removeAll(refused);
      say(request, Collections.emptyList(), forgiven);
    }
  }

  /** Remember which nodes the master itself wants no container on. */
  private void note(ResourceBlacklistRequest theirs) {
    if (theirs != null) {
      refused.addAll(some(theirs.getBlacklistAdditions()));
      refused.removeAll(some(theirs.getBlacklistRemovals()));
    }
  }

  private static void say(AllocateRequest request, List<String> added, List<String> removed) {
    ResourceBlacklistRequest theirs = request.getResourceBlacklistRequest();
    List<String> additions = new ArrayList<>(added);
    List<String> removals = new ArrayList<>(removed);
    if (theirs != null) {
      additions.addAll(some(theirs.getBlacklistAdditions()));
      removals.addAll(some(theirs.getBlacklistRemovals()));
    }
    request.setResourceBlacklistRequest(ResourceBlacklistRequest.newInstance(additions, removals));
  }

  private static List<String> some(List<String> names) {
    return names == null ? Collections.emptyList() : names;
  }
}
