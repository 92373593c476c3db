// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.gpusage.yarn.NodeGpus.amount;

import java.util.ArrayList;
import java.util.Arrays;
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
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.ExecutionTypeRequest;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.ResourceSizing;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;

/**
 * One application's requests for containers: what each becomes under the plan, and which of them have waited too long.
 *
 * <p>A given request is never changed. A changed copy replaces it, so that a failure on the way leaves everything as it was.
 */
final class RequestConverter {

  /** A request that the scheduler has not served in full. */
  private static final class Outstanding {
    private ResourceRequest ask;
    private int remaining;
    private long sinceNs;
  }

  private static final int MOST_KEYS = 10_000;
  private static final int MOST_WAITING = 10 * MOST_KEYS; // of one key there is a request for each host and rack

  final Plan plan;
  private final Offers offers;
  private final boolean hasPlan;
  private final boolean everyRequest;
  private final String share;
  private final Map<SchedulerRequestKey, Outstanding> outstanding = new HashMap<>();
  private final Map<SchedulerRequestKey, Long> requestedGpus = new LinkedHashMap<SchedulerRequestKey, Long>(16, 0.75f, true) {
    @Override
    protected boolean removeEldestEntry(Map.Entry<SchedulerRequestKey, Long> eldest) {
      return size() > MOST_KEYS; // a master may number its requests as it likes
    }
  };

  /** Requests for whole GPUs that came before their nodes had registered, as after a restart of the ResourceManager. */
  private final Map<List<Object>, ResourceRequest> deferred = new LinkedHashMap<>();

  /** Those that went to nodes without a label while labels were due: once no such node has a GPU, they are resolved again. */
  private final Map<List<Object>, ResourceRequest> unlabelled = new LinkedHashMap<>();

  /** Keys that want no more containers; those allocated before come with the answer to that request at the latest. */
  private final Set<SchedulerRequestKey> cancelled = new HashSet<>();

  /** Requests with placement constraints for GPUs, until nodes with GPUs have registered where they go: YARN would lower them to nothing. */
  private final Map<SchedulerRequestKey, SchedulingRequest> held = new LinkedHashMap<>();

  /** Whether one with placement constraints became a share: YARN's own allocator serves it, which asks our calculator about every node. */
  boolean constrained;

  private String label;

  /**
   * Make an application's.
   *
   * @param everyRequest whether each request is for a GPU: so with our own master; others' say so by one yarn.io/gpu, or by a share
   * @param label the generation that it begins on; null if we may not choose it
   * @param offers where requests for whole GPUs become shares of 100 for each
   */
  RequestConverter(Plan plan, boolean everyRequest, String share, String label, Offers offers) {
    this(plan, true, everyRequest, share, label, offers);
  }

  private RequestConverter(Plan plan, boolean hasPlan, boolean everyRequest, String share, String label, Offers offers) {
    this.offers = offers;
    this.plan = plan;
    this.hasPlan = hasPlan;
    this.everyRequest = everyRequest;
    this.share = share;
    this.label = label;
  }

  /**
   * Return those of an application without a plan.
   *
   * @param label where its requests for GPUs go that name no label; null if we may not say
   */
  static RequestConverter unplanned(String share, String label, Offers offers) {
    return new RequestConverter(Plan.wholeGpu(), false, false, share, label, offers);
  }

  /** Return what the scheduler is to see for {@code requested}, of which a container can have {@code most}. */
  List<ResourceRequest> convert(List<ResourceRequest> requested, Resource most, long nowNs) {
    List<ResourceRequest> changed = new ArrayList<>(requested.size());
    requestedGpus.keySet().removeAll(cancelled);
    cancelled.clear();
    Map<SchedulerRequestKey, String> labels = labels(requested);
    for (ResourceRequest ask : requested) {
      deferred.remove(keyAndPlace(ask));
      unlabelled.remove(keyAndPlace(ask));
      boolean partly = needsShare(ask, most);
      ResourceRequest ours = partly ? withLabel(copy(ask, withShare(ask.getCapability()), ask.getNumContainers())) : toWholeShares(ask, labels);
      if (ours != null) {
        track(ask, ours, nowNs);
        changed.add(ours);
      } else if (label != null && ask.getCapability() != null && amount(ask.getCapability(), Settings.GPU_RESOURCE) > 0) {
        changed.add(withLabel(copy(ask, ask.getCapability(), ask.getNumContainers())));
      } else {
        changed.add(ask);
      }
    }
    return changed;
  }

  /**
   * Return what the scheduler is to see now of {@code requested}, which have placement constraints, and of those that were held: shares of 100 in
   * place of GPUs where they go to nodes that offer shares alone.
   */
  List<SchedulingRequest> convertConstrained(List<SchedulingRequest> requested) {
    Map<SchedulerRequestKey, SchedulingRequest> asks = new LinkedHashMap<>(held);
    requested.forEach(ask -> asks.put(new SchedulerRequestKey(ask.getPriority(), ask.getAllocationRequestId(), null), ask));
    held.clear();
    List<SchedulingRequest> ready = new ArrayList<>();
    asks.forEach(
        (key, ask) -> {
          Resource capability = ask.getResourceSizing() == null ? null : ask.getResourceSizing().getResources();
          long gpus = isOpportunistic(ask.getExecutionType()) ? 0 : amount(capability, Settings.GPU_RESOURCE);
          String chosen = gpus == 0 ? "" : offers.label(capability, true);
          if (gpus > 0 && !offers.offersGpus(chosen) && held.size() < MOST_KEYS) {
            held.put(key, ask);
          } else if (gpus > 0 && offers.becomesShares(chosen, capability)) {
            constrained = true;
            requestedGpus.put(key, gpus);
            ready.add(withResources(ask, wholeShares(capability, share)));
          } else {
            ready.add(ask);
          }
        });
    return ready;
  }

  private static SchedulingRequest withResources(SchedulingRequest ask, Resource resources) {
    return SchedulingRequest.newBuilder()
        .allocationRequestId(ask.getAllocationRequestId()).priority(ask.getPriority()).executionType(ask.getExecutionType())
        .allocationTags(ask.getAllocationTags()).placementConstraintExpression(ask.getPlacementConstraint())
        .resourceSizing(ResourceSizing.newInstance(ask.getResourceSizing().getNumAllocations(), resources))
        .build();
  }

  /**
   * Return requests for whole GPUs again, as shares or with their label, whose nodes have registered or got their label only now.
   *
   * @param remaining how many containers the scheduler still owes for a request
   */
  List<ResourceRequest> resolvedRequests(ToIntFunction<SchedulerRequestKey> remaining, long nowNs) {
    List<ResourceRequest> resolvedRequests = new ArrayList<>();
    if (!unlabelled.isEmpty() && !offers.offersGpus("")) {
      deferred.putAll(unlabelled);
      unlabelled.clear();
    }
    List<ResourceRequest> requested = new ArrayList<>(deferred.values());
    deferred.clear();
    Map<SchedulerRequestKey, String> labels = labels(requested);
    for (ResourceRequest ask : requested) {
      int outstanding = remaining.applyAsInt(SchedulerRequestKey.create(ask));
      boolean any = ResourceRequest.isAnyLocation(ask.getResourceName());
      int containers = any ? outstanding : Math.min(outstanding, ask.getNumContainers());
      ResourceRequest whole = toWholeShares(copy(ask, ask.getCapability(), containers), labels);
      if (whole != null && outstanding > 0) {
        track(ask, whole, nowNs);
        resolvedRequests.add(whole);
      }
    }
    return resolvedRequests;
  }

  /**
   * Return the requests that go to the next generation because one of them has waited too long; none if none has.
   *
   * @param remaining how many containers the scheduler still owes for a request
   * @param next the generation after a given one, for a container of the given size; the same where there is no other
   */
  List<ResourceRequest> fallbackRequests(ToIntFunction<SchedulerRequestKey> remaining, BiFunction<String, Resource, String> next, long nowNs) {
    List<ResourceRequest> fallbackRequests = new ArrayList<>();
    Resource overdue = label == null || plan.fallbackAfterS == 0 ? null : overdue(remaining, nowNs);
    if (overdue == null) {
      return fallbackRequests;
    }
    String following = next.apply(label, overdue);
    for (Outstanding request : outstanding.values()) {
      request.sinceNs = nowNs;
      if (!following.equals(label)) {
        request.ask = copy(request.ask, request.ask.getCapability(), request.remaining);
        request.ask.setNodeLabelExpression(following);
        fallbackRequests.add(request.ask);
      }
    }
    label = following;
    return fallbackRequests;
  }

  /** Return {@code container} as its master asked for it: with yarn.io/gpu, by which it is recognised; null for no change. */
  Container withRequestedGpus(Container container) {
    SchedulerRequestKey key = new SchedulerRequestKey(container.getPriority(), container.getAllocationRequestId(), null);
    Long gpus = requestedGpus.get(key);
    if (gpus == null || container.getResource().getResourceValue(share) == 0) {
      return null;
    }
    Resource shown = Resource.newInstance(container.getResource());
    shown.setResourceValue(Settings.GPU_RESOURCE, gpus);
    Container copy =
        Container.newInstance(container.getId(), container.getNodeId(), container.getNodeHttpAddress(), shown,
            container.getPriority(), container.getContainerToken(), container.getExecutionType());
    copy.setAllocationRequestId(container.getAllocationRequestId());
    copy.setAllocationTags(container.getAllocationTags());
    copy.setVersion(container.getVersion());
    if (container.getExposedPorts() != null) {
      copy.setExposedPorts(container.getExposedPorts());
    }
    return copy;
  }

  int keysRemembered() {
    return requestedGpus.size();
  }

  private boolean needsShare(ResourceRequest ask, Resource most) {
    Resource capability = ask.getCapability();
    if (!hasPlan || capability == null || amount(most, share) == 0 || isOpportunistic(ask.getExecutionTypeRequest())) {
      return false;
    }
    long gpus = amount(capability, Settings.GPU_RESOURCE);
    boolean isAllowed = plan.share <= amount(most, share); // by the queue; else its master gets what it asked for
    return gpus == 1 && isAllowed || gpus == 0 && (everyRequest || amount(capability, share) > 0);
  }

  /**
   * Return {@code ask} for shares of 100 in place of its GPUs, which are the same GPUs; or for its GPUs, with the label of nodes that offer them;
   * null where nothing is to be changed.
   */
  private ResourceRequest toWholeShares(ResourceRequest ask, Map<SchedulerRequestKey, String> labels) {
    long gpus = amount(ask.getCapability(), Settings.GPU_RESOURCE);
    if (gpus == 0 || gpus > NodeGpus.siteMaximum() || isOpportunistic(ask.getExecutionTypeRequest())) {
      return null;
    }
    String named = labels.getOrDefault(SchedulerRequestKey.create(ask), "");
    String chosen = !named.isEmpty() ? named : label != null ? label : offers.label(ask.getCapability(), false);
    boolean asShares = offers.becomesShares(chosen, ask.getCapability());
    boolean offered = asShares || offers.offersGpus(chosen);
    boolean resolveLater = !offered || chosen.isEmpty() && offers.areLabelsDue();
    Map<List<Object>, ResourceRequest> waiting = offered ? unlabelled : deferred;
    if (resolveLater && ask.getNumContainers() > 0 && waiting.size() < MOST_WAITING) {
      waiting.put(keyAndPlace(ask), ask);
    }
    if (!offered || !asShares && (chosen.isEmpty() || chosen.equals(named) || label != null)) {
      return null;
    }
    ResourceRequest ours = copy(ask, asShares ? wholeShares(ask.getCapability(), share) : ask.getCapability(), ask.getNumContainers());
    if (named.isEmpty() && !chosen.isEmpty() && ResourceRequest.isAnyLocation(ours.getResourceName())) {
      ours.setNodeLabelExpression(chosen);
    }
    return ours;
  }

  /** Return what a later request must equal to replace {@code ask}. */
  private static List<Object> keyAndPlace(ResourceRequest ask) {
    return Arrays.asList(SchedulerRequestKey.create(ask), ask.getResourceName());
  }

  /** Return {@code requested} with 100 of {@code share} for each of its GPUs. */
  static Resource wholeShares(Resource requested, String share) {
    Resource shares = Resource.newInstance(requested);
    long gpus = Math.min(amount(requested, Settings.GPU_RESOURCE), Long.MAX_VALUE / Settings.WHOLE_GPU); // of too many YARN says so itself
    shares.setResourceValue(share, Settings.WHOLE_GPU * gpus);
    shares.setResourceValue(Settings.GPU_RESOURCE, 0);
    return shares;
  }

  /** Return the labels that requests name; YARN reads a label in a request for any place, for all those of its key. */
  private static Map<SchedulerRequestKey, String> labels(List<ResourceRequest> requested) {
    Map<SchedulerRequestKey, String> labels = new HashMap<>();
    for (ResourceRequest ask : requested) {
      String named = ask.getNodeLabelExpression();
      if (ResourceRequest.isAnyLocation(ask.getResourceName()) && named != null && !named.trim().isEmpty()) {
        labels.put(SchedulerRequestKey.create(ask), named.trim());
      }
    }
    return labels;
  }

  /** Return whether {@code type} is of containers that run where something is left over; nobody is to wait for what they have of a GPU. */
  private static boolean isOpportunistic(ExecutionTypeRequest type) {
    return type != null && type.getExecutionType() == ExecutionType.OPPORTUNISTIC;
  }

  private ResourceRequest withLabel(ResourceRequest ours) {
    if (ResourceRequest.isAnyLocation(ours.getResourceName())) {
      String named = ours.getNodeLabelExpression();
      if (everyRequest && plan.labels.contains(named)) { // as our master says by itself, for it knows no better
        ours.setNodeLabelExpression(label);
      } else if (label != null && (named == null || named.isEmpty())) {
        ours.setNodeLabelExpression(label);
      }
    }
    return ours;
  }

  /** Return {@code requested} with the plan's share. What is more than the queue allows is YARN's to refuse: half a GPU is not what was asked for. */
  private Resource withShare(Resource requested) {
    Resource capability = Resource.newInstance(requested);
    capability.setResourceValue(share, Math.max(plan.share, amount(capability, share)));
    capability.setMemorySize(Math.max(capability.getMemorySize(), plan.memoryMib));
    if (amount(capability, Settings.GPU_RESOURCE) > 0) {
      capability.setResourceValue(Settings.GPU_RESOURCE, 0);
    }
    return capability;
  }

  private void track(ResourceRequest ask, ResourceRequest ours, long nowNs) {
    SchedulerRequestKey key = SchedulerRequestKey.create(ours);
    long gpus = amount(ask.getCapability(), Settings.GPU_RESOURCE);
    if (gpus > 0 && ours.getNumContainers() > 0) {
      requestedGpus.put(key, gpus);
    }
    if (!ResourceRequest.isAnyLocation(ours.getResourceName())) {
      return;
    }
    if (ours.getNumContainers() == 0) {
      cancelled.add(key);
    } else {
      cancelled.remove(key);
    }
    if (ours.getNumContainers() == 0 || label == null || !label.equals(ours.getNodeLabelExpression())) {
      outstanding.remove(key);
      return;
    }
    Outstanding request = outstanding.computeIfAbsent(key, unseen -> new Outstanding());
    if (request.ask == null || ours.getNumContainers() != request.remaining) {
      request.sinceNs = nowNs;
    }
    request.ask = ours;
    request.remaining = ours.getNumContainers();
  }

  /** Return the size of a container that a request has waited for too long; null if there is none. */
  private Resource overdue(ToIntFunction<SchedulerRequestKey> remaining, long nowNs) {
    Resource overdue = null;
    for (Iterator<Map.Entry<SchedulerRequestKey, Outstanding>> each = outstanding.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry<SchedulerRequestKey, Outstanding> entry = each.next();
      Outstanding request = entry.getValue();
      int now = remaining.applyAsInt(entry.getKey());
      if (now == 0) {
        each.remove();
        continue;
      }
      if (now != request.remaining) {
        request.remaining = now;
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
}
