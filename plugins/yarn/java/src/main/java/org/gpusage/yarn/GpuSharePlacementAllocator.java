package org.gpusage.yarn;

import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AppSchedulingInfo;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.NodeType;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.activities.DiagnosticsCollector;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ContainerRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.CandidateNodeSet;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.LocalityAppPlacementAllocator;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;

/**
 * Binds each container with a share to a GPU when it is allocated, and lets none be allocated on a node that has no GPU with room for it.
 *
 * <p>YARN adds up what a node has: two GPUs with 25 left are 50 to it. Where our calculator runs, such a node counts as full, and YARN reserves it
 * as it does for any request that waits for room ({@link #lacksRoom}). With another calculator the request is passed over on that node.
 *
 * <p>An exception here would end the ResourceManager: none leaves.
 */
public class GpuSharePlacementAllocator<N extends SchedulerNode> extends LocalityAppPlacementAllocator<N> {
  /** The node that this thread is about to place a container on. */
  private static final ThreadLocal<SchedulerNode> CANDIDATE = new ThreadLocal<>();

  private static volatile String share = Settings.DEFAULT_SHARE_RESOURCE;

  /** Whether our calculator runs, which lets YARN reserve a node none of whose GPUs has room. */
  private boolean reserves;

  /** A stock request, with the tags that the container is to carry. */
  private static final class Bound extends ContainerRequest {
    private final Set<String> tags;

    private Bound(ContainerRequest stock, Set<String> tags) {
      super(stock.getResourceRequests());
      this.tags = tags;
    }

    /** Return what the scheduler takes the container's tags from; nothing else of it is read. */
    @Override
    public SchedulingRequest getSchedulingRequest() {
      return SchedulingRequest.newBuilder().priority(Priority.newInstance(0)).allocationTags(tags).build();
    }
  }

  @Override
  public void initialize(AppSchedulingInfo application, SchedulerRequestKey key, RMContext rm) {
    super.initialize(application, key, rm);
    try {
      share = Settings.shareResource(rm.getYarnConfiguration());
      reserves = GpuShareResourceCalculator.isRunning();
    } catch (Throwable failure) {
      Metrics.recordFailure("allocator.initialize", failure);
    }
  }

  @Override
  public Iterator<N> getPreferredNodeIterator(CandidateNodeSet<N> candidates) {
    Iterator<N> stock = super.getPreferredNodeIterator(candidates);
    return new Iterator<N>() {
      @Override
      public boolean hasNext() {
        return stock.hasNext();
      }

      @Override
      public N next() {
        N node = stock.next();
        CANDIDATE.set(node);
        return node;
      }
    };
  }

  @Override
  public boolean precheckNode(SchedulerNode node, SchedulingMode mode, Optional<DiagnosticsCollector> diagnostics) {
    return super.precheckNode(node, mode, diagnostics) && (reserves || hasRoom(node));
  }

  @Override
  public boolean canAllocate(NodeType type, SchedulerNode node) {
    return super.canAllocate(type, node) && hasRoom(node);
  }

  @Override
  public ContainerRequest allocate(SchedulerRequestKey key, NodeType type, SchedulerNode node) {
    long requested = requested(); // before it is counted as served
    ContainerRequest stock = super.allocate(key, type, node);
    try {
      List<Integer> chosen = requested == 0 ? null : choose(node, requested);
      boolean isBound = chosen != null && !chosen.isEmpty();
      return isBound ? new Bound(stock, NodeGpus.tags(chosen, threads(appSchedulingInfo.getApplicationSchedulingEnvs()))) : stock;
    } catch (Throwable failure) {
      Metrics.recordFailure("allocator.allocate", failure);
      return stock;
    }
  }

  /** Return whether no GPU of the node that this thread looks at, of which {@code available} is left, has room for what is {@code required}. */
  static boolean lacksRoom(Resource available, Resource required) {
    try {
      SchedulerNode node = CANDIDATE.get();
      return NodeGpus.amount(required, share) > 0
          && node != null
          && node.getUnallocatedResource() == available // else it is no node that is looked at, but a queue
          && !NodeGpus.hasRoom(node, required, share);
    } catch (Throwable failure) {
      Metrics.recordFailure("calculator.computeAvailableContainers", failure);
      return false;
    }
  }

  List<Integer> choose(SchedulerNode node, long requested) {
    return NodeGpus.of(node, share).choose(requested);
  }

  /** Return whether a GPU of {@code node} has room for what is wanted, or the node is too full by YARN's own count. */
  private boolean hasRoom(SchedulerNode node) {
    try {
      long requested = requested();
      return requested == 0 || NodeGpus.amount(node.getUnallocatedResource(), share) < requested || !choose(node, requested).isEmpty();
    } catch (Throwable failure) {
      Metrics.recordFailure("allocator.precheck", failure);
      return true;
    }
  }

  private long requested() {
    try {
      return NodeGpus.amount(getPendingAsk(ResourceRequest.ANY).getPerAllocationResource(), share);
    } catch (Throwable failure) {
      Metrics.recordFailure("allocator's share", failure);
      return 0;
    }
  }

  /** Return the percentage of a GPU's threads that an application's plan lets its containers use; 0 for a plan that nobody can read. */
  static long threads(Map<String, String> variables) {
    String plan = variables.get(Plan.VARIABLE);
    try {
      return plan == null ? 0 : Plan.parse(plan).threads;
    } catch (Plan.PlanException unreadable) {
      return 0; // its user may write anything there: the container is bound all the same
    }
  }
}
