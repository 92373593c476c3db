// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;
import org.apache.hadoop.thirdparty.com.google.common.collect.Iterators;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AppSchedulingInfo;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.NodeType;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.activities.DiagnosticsCollector;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ContainerRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.CandidateNodeSet;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.LocalityAppPlacementAllocator;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.apache.hadoop.yarn.util.resource.ResourceCalculator;

/**
 * Binds each container with a share to a GPU when it is allocated, and lets none be allocated on a node that has no GPU with room for it.
 *
 * <p>YARN adds up what a node has: two GPUs with 25 left are 50 to it. Where our calculator runs, such a node counts as full, and YARN reserves it
 * as it does for any request that waits for room ({@link GpuShareResourceCalculator}). With another calculator the request is passed over there.
 *
 * <p>The scheduler's threads end the ResourceManager at whatever is thrown, errors of linking after a jar was replaced included: what YARN calls
 * keeps these, too.
 */
@InterfaceAudience.Public
@InterfaceStability.Evolving
public class GpuSharePlacementAllocator<N extends SchedulerNode> extends LocalityAppPlacementAllocator<N> {
  private String share = Settings.DEFAULT_SHARE_RESOURCE;

  /** Our calculator, if this ResourceManager's scheduler has it: it lets YARN reserve a node none of whose GPUs has room. */
  private GpuShareResourceCalculator calculator;

  private long threads;

  /** The application whose containers never share a GPU; null where they may. */
  private ApplicationId apart;

  /** Where the scheduler has just found that a container can be allocated, and on which GPUs; it allocates under the same lock. */
  private SchedulerNode chosenNode;

  private List<Integer> chosen;

  /** What the scheduler takes a container's tags from, and nothing else, by its GPUs: it is slow to make. The scheduler's locks guard it. */
  private final Map<List<Integer>, SchedulingRequest> tagged = new HashMap<>();

  /** A stock request, with the tags that the container is to carry. */
  private static final class Bound extends ContainerRequest {
    private final SchedulingRequest tagged;

    private Bound(ContainerRequest stock, SchedulingRequest tagged) {
      super(stock.getResourceRequests());
      this.tagged = tagged;
    }

    @Override
    public SchedulingRequest getSchedulingRequest() {
      return tagged;
    }
  }

  @Override
  public void initialize(AppSchedulingInfo application, SchedulerRequestKey key, RMContext rm) {
    super.initialize(application, key, rm);
    try {
      share = Settings.shareResource(rm.getYarnConfiguration());
      ResourceCalculator used = ((CapacityScheduler) rm.getScheduler()).getResourceCalculator();
      calculator = used instanceof GpuShareResourceCalculator ? (GpuShareResourceCalculator) used : null;
      Optional<Plan> plan = plan(application.getApplicationSchedulingEnvs());
      threads = plan.map(known -> known.threads).orElse(0);
      apart = plan.isPresent() && plan.get().apart ? application.getApplicationId() : null;
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("allocator.initialize", failure);
    }
  }

  @Override
  public Iterator<N> getPreferredNodeIterator(CandidateNodeSet<N> candidates) {
    // not in precheckNode, which YARN skips for a reserved container
    return Iterators.transform(super.getPreferredNodeIterator(candidates), node -> calculator == null ? node : calculator.know(node));
  }

  @Override
  public boolean precheckNode(SchedulerNode node, SchedulingMode mode, Optional<DiagnosticsCollector> diagnostics) {
    boolean countsRight = calculator != null && apart == null; // it knows no application
    return super.precheckNode(node, mode, diagnostics) && (countsRight || mayServe(node));
  }

  @Override
  public boolean canAllocate(NodeType type, SchedulerNode node) {
    chosenNode = node;
    chosen = null;
    try {
      chosen = requested() == 0 ? null : choose(node, requested());
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("allocator.canAllocate", failure);
    }
    return super.canAllocate(type, node) && (chosen == null || !chosen.isEmpty());
  }

  @Override
  public ContainerRequest allocate(SchedulerRequestKey key, NodeType type, SchedulerNode node) {
    long requested = requested(); // before it is counted as served
    ContainerRequest stock = super.allocate(key, type, node);
    try {
      List<Integer> gpus = requested == 0 || node == chosenNode && chosen != null ? chosen : choose(node, requested);
      chosenNode = null; // it serves one container
      return requested == 0 || gpus.isEmpty() ? stock : new Bound(stock, tagged(gpus));
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("allocator.allocate", failure);
      return stock;
    }
  }

  private SchedulingRequest tagged(List<Integer> gpus) {
    if (tagged.size() > NodeGpus.MOST_GPUS) {
      tagged.clear(); // sets of several GPUs are many
    }
    return tagged.computeIfAbsent(gpus, numbers ->
        SchedulingRequest.newBuilder().priority(Priority.newInstance(0)).allocationTags(NodeGpus.tags(numbers, threads, apart != null)).build());
  }

  List<Integer> choose(SchedulerNode node, long requested) {
    return NodeGpus.of(node, share, apart).choose(requested);
  }

  /**
   * Return whether a GPU of {@code node} has room for what is wanted, or may have it later and YARN counts so too: the node is too full by its own
   * count, or by our calculator's.
   */
  private boolean mayServe(SchedulerNode node) {
    try {
      long requested = requested();
      boolean room = requested == 0 || NodeGpus.amount(node.getUnallocatedResource(), share) < requested || !choose(node, requested).isEmpty();
      if (apart == null || requested == 0) {
        return room;
      }
      NodeGpus gpus = NodeGpus.of(node, share, apart);
      return calculator != null && gpus.barred.isEmpty() || room && !gpus.areAllBarred();
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("allocator.precheck", failure);
      return true;
    }
  }

  private long requested() {
    return NodeGpus.amount(getPendingAsk(ResourceRequest.ANY).getPerAllocationResource(), share);
  }

  /** Return the plan of an application with these {@code variables}; none for one that nobody can read: it is bound all the same. */
  static Optional<Plan> plan(Map<String, String> variables) {
    String plan = variables.get(Plan.VARIABLE);
    try {
      return plan == null ? Optional.empty() : Optional.of(Plan.parse(plan));
    } catch (Plan.PlanException unreadable) {
      return Optional.empty();
    }
  }
}
