package org.gpusage.yarn;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import java.util.function.ToIntFunction;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * One application's requests for containers: what each becomes under the plan, and which of them have waited too long.
 *
 * <p>A given request is never changed. A changed copy replaces it, so that a failure on the way leaves everything as it was.
 */
final class Asks {

  /** A request that the scheduler has not served in full. */
  private static final class Open {
    private ResourceRequest ask;
    private int left;
    private long sinceNs;
  }

  private static final int MOST_KEYS = 10_000;

  final Plan plan;
  final KeptOff keptOff;
  private final boolean planned;
  private final boolean shared;
  private final boolean every;
  private final String share;
  private final Map<SchedulerRequestKey, Open> open = new HashMap<>();
  private final Map<SchedulerRequestKey, Long> gpusAsked =
      new LinkedHashMap<SchedulerRequestKey, Long>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<SchedulerRequestKey, Long> eldest) {
          return size() > MOST_KEYS; // a master may number its requests as it likes
        }
      };

  /** Keys that want no more containers; those allocated before come with the answer to that request at the latest. */
  private final Set<SchedulerRequestKey> leaving = new HashSet<>();

  private String label;

  /**
   * Make an application's.
   *
   * @param every whether each request is for a GPU: so with our own master; others' say so by one yarn.io/gpu, or by a share
   * @param label the generation that it begins on; null if we may not choose it
   * @param keptOff the nodes to keep off
   */
  Asks(Plan plan, boolean every, String share, String label, KeptOff keptOff) {
    this(plan, true, true, every, share, label, keptOff);
  }

  private Asks(Plan plan, boolean planned, boolean shared, boolean every, String share, String label, KeptOff keptOff) {
    this.keptOff = keptOff;
    this.plan = plan;
    this.planned = planned;
    this.shared = shared;
    this.every = every;
    this.share = share;
    this.label = label;
  }

  /**
   * Return those of an application without a plan.
   *
   * @param shared whether one yarn.io/gpu is to be a share of 100, for nodes offer shares only
   * @param label where its requests for GPUs go that name no label; null if we may not say
   */
  static Asks unplanned(String share, boolean shared, String label) {
    return new Asks(Plan.wholeGpu(), false, shared, false, share, label, new KeptOff(Collections.emptyList()));
  }

  /** Return what the scheduler is to see for {@code asked}, of which a container can have {@code most}. */
  List<ResourceRequest> change(List<ResourceRequest> asked, Resource most, long nowNs) {
    List<ResourceRequest> changed = new ArrayList<>(asked.size());
    gpusAsked.keySet().removeAll(leaving);
    leaving.clear();
    for (ResourceRequest ask : asked) {
      if (becomesShare(ask, most)) {
        ResourceRequest ours = labelled(copy(ask, withShare(ask.getCapability(), most), ask.getNumContainers()));
        note(ask, ours, nowNs);
        changed.add(ours);
      } else if (label != null && ask.getCapability() != null && amount(ask.getCapability(), Settings.GPU_RESOURCE) > 0) {
        changed.add(labelled(copy(ask, ask.getCapability(), ask.getNumContainers())));
      } else {
        changed.add(ask);
      }
    }
    return changed;
  }

  /**
   * Return the requests that go to the next generation because one of them has waited too long; none if none has.
   *
   * @param left how many containers the scheduler still owes for a request
   * @param next the generation after a given one, for a container of the given size; the same where there is no other
   */
  List<ResourceRequest> moved(
      ToIntFunction<SchedulerRequestKey> left, BiFunction<String, Resource, String> next, long nowNs) {
    List<ResourceRequest> moved = new ArrayList<>();
    Resource overdue = label == null || plan.fallbackAfterS == 0 ? null : overdue(left, nowNs);
    if (overdue == null) {
      return moved;
    }
    String following = next.apply(label, overdue);
    for (Open request : open.values()) {
      request.sinceNs = nowNs;
      if (!following.equals(label)) {
        request.ask = copy(request.ask, request.ask.getCapability(), request.left);
        request.ask.setNodeLabelExpression(following);
        moved.add(request.ask);
      }
    }
    label = following;
    return moved;
  }

  /** Return {@code container} as its master asked for it: with yarn.io/gpu, by which it is recognised; null for no change. */
  Container recognisable(Container container) {
    SchedulerRequestKey key =
        new SchedulerRequestKey(container.getPriority(), container.getAllocationRequestId(), null);
    Long gpus = gpusAsked.get(key);
    if (gpus == null || container.getResource().getResourceValue(share) == 0) {
      return null;
    }
    Resource shown = Resource.newInstance(container.getResource());
    shown.setResourceValue(Settings.GPU_RESOURCE, gpus);
    Container copy =
        Container.newInstance(
            container.getId(),
            container.getNodeId(),
            container.getNodeHttpAddress(),
            shown,
            container.getPriority(),
            container.getContainerToken(),
            container.getExecutionType());
    copy.setAllocationRequestId(container.getAllocationRequestId());
    copy.setAllocationTags(container.getAllocationTags());
    copy.setVersion(container.getVersion());
    if (container.getExposedPorts() != null) {
      copy.setExposedPorts(container.getExposedPorts());
    }
    return copy;
  }

  /** Return the generation that open requests are for. */
  String label() {
    return label;
  }

  /** Return how large the containers are that are still wanted of that generation. */
  List<Resource> wanted() {
    return open.values().stream().map(request -> request.ask.getCapability()).distinct().collect(Collectors.toList());
  }

  int keysRemembered() {
    return gpusAsked.size();
  }

  private boolean becomesShare(ResourceRequest ask, Resource most) {
    Resource capability = ask.getCapability();
    if (!shared || capability == null || amount(most, share) == 0 || isOpportunistic(ask)) {
      return false;
    }
    long gpus = amount(capability, Settings.GPU_RESOURCE);
    return gpus == 1 || planned && gpus == 0 && (every || amount(capability, share) > 0);
  }

  /** Tell whether {@code ask} is for containers that run where something is left over; nobody is to wait for what they have of a GPU. */
  private static boolean isOpportunistic(ResourceRequest ask) {
    return ask.getExecutionTypeRequest() != null
        && ask.getExecutionTypeRequest().getExecutionType() == ExecutionType.OPPORTUNISTIC;
  }

  private ResourceRequest labelled(ResourceRequest ours) {
    if (ResourceRequest.isAnyLocation(ours.getResourceName())) {
      String named = ours.getNodeLabelExpression();
      if (every && plan.labels.contains(named)) { // as our master says by itself, for it knows no better
        ours.setNodeLabelExpression(label);
      } else if (label != null && (named == null || named.isEmpty())) {
        ours.setNodeLabelExpression(label);
      }
    }
    return ours;
  }

  private Resource withShare(Resource asked, Resource most) {
    Resource capability = Resource.newInstance(asked);
    long wanted = Math.max(plan.share, amount(capability, share));
    capability.setResourceValue(share, Math.min(wanted, amount(most, share)));
    long memory = Math.min(plan.memoryMib, most.getMemorySize());
    capability.setMemorySize(Math.max(capability.getMemorySize(), memory));
    if (amount(capability, Settings.GPU_RESOURCE) > 0) {
      capability.setResourceValue(Settings.GPU_RESOURCE, 0);
    }
    return capability;
  }

  private void note(ResourceRequest ask, ResourceRequest ours, long nowNs) {
    SchedulerRequestKey key = SchedulerRequestKey.create(ours);
    long gpus = amount(ask.getCapability(), Settings.GPU_RESOURCE);
    if (gpus > 0 && ours.getNumContainers() > 0) {
      gpusAsked.put(key, gpus);
    }
    if (!ResourceRequest.isAnyLocation(ours.getResourceName())) {
      return;
    }
    if (ours.getNumContainers() == 0) {
      leaving.add(key);
    } else {
      leaving.remove(key);
    }
    if (ours.getNumContainers() == 0 || label == null || !label.equals(ours.getNodeLabelExpression())) {
      open.remove(key);
      return;
    }
    Open request = open.computeIfAbsent(key, unseen -> new Open());
    if (request.ask == null || ours.getNumContainers() != request.left) {
      request.sinceNs = nowNs;
    }
    request.ask = ours;
    request.left = ours.getNumContainers();
  }

  /** Return the size of a container that a request has waited for too long; null if there is none. */
  private Resource overdue(ToIntFunction<SchedulerRequestKey> left, long nowNs) {
    Resource overdue = null;
    for (Iterator<Map.Entry<SchedulerRequestKey, Open>> each = open.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry<SchedulerRequestKey, Open> entry = each.next();
      Open request = entry.getValue();
      int now = left.applyAsInt(entry.getKey());
      if (now == 0) {
        each.remove();
        continue;
      }
      if (now != request.left) {
        request.left = now;
        request.sinceNs = nowNs;
      }
      if (nowNs - request.sinceNs >= TimeUnit.SECONDS.toNanos(plan.fallbackAfterS)) {
        overdue = request.ask.getCapability();
      }
    }
    return overdue;
  }

  private static ResourceRequest copy(ResourceRequest ask, Resource capability, int containers) {
    ResourceRequest copy = ResourceRequest.clone(ask);
    copy.setCapability(capability);
    copy.setNumContainers(containers);
    return copy;
  }

  private static long amount(Resource resource, String type) {
    return ResourceUtils.getResourceTypeIndex().containsKey(type) ? resource.getResourceValue(type) : 0;
  }
}
