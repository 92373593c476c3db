// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;
import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceContext;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceProcessor;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterResponse;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.apache.hadoop.yarn.util.resource.Resources;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Puts the plan's share, memory and label into an application's requests, whether or not its master knows about shares.
 *
 * <p>We always call the next processor outside our own try: the master sees its exceptions, and nobody sees ours. Errors pass: YARN answers
 * them to the master.
 */
@InterfaceAudience.Public
@InterfaceStability.Evolving
public class GpuShareProcessor implements ApplicationMasterServiceProcessor, Configurable {
  private static final Logger LOG = LoggerFactory.getLogger(GpuShareProcessor.class);

  private final Map<ApplicationAttemptId, Optional<RequestConverter>> applications = new ConcurrentHashMap<>();
  private ApplicationMasterServiceProcessor next;
  private Configuration conf;
  private RMContext rm;
  private KillSwitch off;
  private String share;
  private boolean forWholeGpus;
  private String defaultLabel;

  @Override
  public void setConf(Configuration conf) {
    this.conf = conf;
  }

  @Override
  public Configuration getConf() {
    return conf;
  }

  @Override
  public void init(ApplicationMasterServiceContext context, ApplicationMasterServiceProcessor next) {
    this.next = next;
    try {
      start(context);
    } catch (Exception failure) {
      rm = null;
      Metrics.recordFailure("processor.init", failure);
    }
  }

  @Override
  public void registerApplicationMaster(
      ApplicationAttemptId attempt, RegisterApplicationMasterRequest request, RegisterApplicationMasterResponse response)
      throws IOException, YarnException {
    try {
      if (rm != null) {
        begin(attempt);
      }
    } catch (Exception failure) {
      Metrics.recordFailure("processor.register", failure);
    }
    next.registerApplicationMaster(attempt, request, response);
    try {
      if (rm != null && forWholeGpus) {
        showWholeGpus(response);
      }
    } catch (Exception failure) {
      Metrics.recordFailure("processor.register's answer", failure);
    }
  }

  @Override
  public void allocate(ApplicationAttemptId attempt, AllocateRequest request, AllocateResponse response) throws YarnException {
    RequestConverter converter = null;
    String refusal = "";
    try {
      if (rm != null) {
        converter = converterOf(attempt);
        refusal = convertConstrained(converter, attempt, request); // first: what is refused reaches YARN with nothing else of the request
        if (refusal.isEmpty()) {
          convert(converter, attempt, request);
        }
      }
    } catch (Exception failure) {
      Metrics.recordFailure("processor.allocate", failure);
    }
    if (!refusal.isEmpty()) {
      throw new InvalidResourceRequestException(refusal);
    }
    next.allocate(attempt, request, response);
    try {
      restore(converter, response);
    } catch (Exception failure) {
      Metrics.recordFailure("processor.allocate's answer", failure);
    }
  }

  @Override
  public void finishApplicationMaster(ApplicationAttemptId attempt, FinishApplicationMasterRequest request, FinishApplicationMasterResponse response) {
    try {
      end(attempt);
    } catch (Exception failure) {
      Metrics.recordFailure("processor.finish", failure);
    }
    next.finishApplicationMaster(attempt, request, response);
  }

  void start(ApplicationMasterServiceContext context) {
    off = Settings.offSwitch(conf);
    share = Settings.shareResource(conf);
    forWholeGpus = conf.getBoolean(Settings.FOR_WHOLE_GPUS, true);
    defaultLabel = conf.getTrimmed(Settings.DEFAULT_LABEL, "");
    rm = (RMContext) context;
    Metrics.started(this);
  }

  /** Forget masters that ended without a word, and what an earlier attempt, or this one before a restart, had asked for; find this one's plan. */
  void begin(ApplicationAttemptId attempt) {
    applications.keySet().removeIf(known -> known.getApplicationId().equals(attempt.getApplicationId()) || isOver(known));
    converterOf(attempt);
  }

  /** Let the answer say how many GPUs a container may have where nodes offer them as shares: Flink looks there before it asks. */
  private void showWholeGpus(RegisterApplicationMasterResponse response) {
    Resource most = response.getMaximumResourceCapability();
    long shared = Math.min(NodeGpus.amount(most, share) / Settings.WHOLE_GPU, NodeGpus.siteMaximum());
    if (shared > NodeGpus.amount(most, Settings.GPU_RESOURCE)) {
      Resource shown = Resource.newInstance(most);
      shown.setResourceValue(Settings.GPU_RESOURCE, shared);
      response.setMaximumResourceCapability(shown);
    }
  }

  void end(ApplicationAttemptId attempt) {
    applications.remove(attempt);
  }

  void convert(RequestConverter converter, ApplicationAttemptId attempt, AllocateRequest request) {
    if (converter == null) {
      return;
    }
    long now = System.nanoTime();
    List<ResourceRequest> fallbacks =
        converter.fallbackRequests(key -> remaining(attempt, key), (label, required) -> following(attempt, converter.plan.labels, label, required), now);
    List<ResourceRequest> resolved = converter.resolvedRequests(key -> remaining(attempt, key), now);
    List<ResourceRequest> requested = request.getAskList();
    if (fallbacks.isEmpty() && resolved.isEmpty() && (requested == null || requested.isEmpty())) {
      return;
    }
    List<ResourceRequest> changed = new ArrayList<>(fallbacks);
    changed.addAll(resolved);
    if (requested != null && !requested.isEmpty()) {
      List<ResourceRequest> ours = converter.convert(requested, most(attempt), now);
      changed.removeIf(ask -> ours.stream().anyMatch(other -> isSame(ask, other)));
      changed.addAll(ours);
    }
    request.setAskList(changed);
    Metrics.count(Metrics.Counter.ASKS_CHANGED);
    if (!fallbacks.isEmpty()) {
      Metrics.count(Metrics.Counter.FALLBACKS);
      LOG.info("gpusage: {} asks for {} now", attempt, fallbacks.get(0).getNodeLabelExpression());
    }
  }

  /**
   * Give requests with placement constraints shares for their GPUs where their nodes offer shares alone; without this YARN lowers what they ask for
   * to what there is, which is nothing.
   *
   * @return why one of them is refused; nothing if none is
   */
  private String convertConstrained(RequestConverter converter, ApplicationAttemptId attempt, AllocateRequest request) {
    List<SchedulingRequest> requested = Optional.ofNullable(request.getSchedulingRequests()).orElse(Collections.emptyList());
    List<SchedulingRequest> changed = converter == null ? requested : converter.convertConstrained(requested);
    Resource most = changed.isEmpty() ? null : most(attempt);
    for (SchedulingRequest ours : changed) {
      long shares = ours.getResourceSizing() == null ? 0 : NodeGpus.amount(ours.getResourceSizing().getResources(), share);
      if (shares > NodeGpus.amount(most, share)) {
        return "A container of this queue can have " + NodeGpus.amount(most, share) + " of " + share + "; got " + shares + ". Ask for fewer GPUs.";
      }
      if (NodeGpus.hasReserved(ours.getAllocationTags())) {
        return "Allocation tags that begin with " + NodeGpus.RESERVED + " say which GPU a container has; got one in a request. Rename it.";
      }
    }
    if (converter != null && converter.constrained && rm.getScheduler() instanceof CapacityScheduler) {
      showNodes((CapacityScheduler) rm.getScheduler());
    }
    if (converter != null && !(requested.isEmpty() && changed.isEmpty())) {
      request.setSchedulingRequests(changed);
    }
    return "";
  }

  /** Show our calculator every node: YARN's own allocator for constraints asks it about nodes that none of ours may have shown it. */
  private void showNodes(CapacityScheduler scheduler) {
    if (scheduler.getResourceCalculator() instanceof GpuShareResourceCalculator) {
      GpuShareResourceCalculator calculator = (GpuShareResourceCalculator) scheduler.getResourceCalculator();
      rm.getRMNodes().keySet().stream().map(scheduler::getNode).filter(Objects::nonNull).forEach(calculator::know);
    }
  }

  void restore(RequestConverter converter, AllocateResponse response) {
    List<Container> allocated = converter == null ? null : response.getAllocatedContainers();
    if (allocated == null || allocated.isEmpty()) {
      return;
    }
    response.setAllocatedContainers(
        allocated.stream().map(each -> Optional.ofNullable(converter.withRequestedGpus(each)).orElse(each)).collect(Collectors.toList()));
  }

  /** Return the requests of an application that is ours to change; null for another one, and for one that was submitted while all was off. */
  private RequestConverter converterOf(ApplicationAttemptId attempt) {
    Optional<RequestConverter> known = applications.get(attempt);
    if (known == null) {
      RMApp application = rm.getRMApps().get(attempt.getApplicationId());
      boolean plain = off.wasOff(application.getSubmitTime()); // what was submitted before the switch keeps its plan
      known = plain ? unplanned(application) : read(application);
      applications.put(attempt, known);
    }
    return known.orElse(null);
  }

  private Optional<RequestConverter> read(RMApp application) {
    try {
      String text = application.getApplicationSchedulingEnvs().get(Plan.VARIABLE);
      if (text != null) {
        Plan plan = Plan.parse(text);
        boolean ours = application.getApplicationSchedulingEnvs().containsKey(GpuShareApplicationMaster.COMMAND);
        return Optional.of(new RequestConverter(plan, ours, share, label(application, plan), offers(application)));
      }
    } catch (Plan.PlanException refusal) {
      // The rule has logged why; the application goes on without a plan.
    }
    return unplanned(application);
  }

  /** Return the requests of an application without a plan, of which whole GPUs stay whole GPUs, by whatever name its nodes offer them. */
  private Optional<RequestConverter> unplanned(RMApp application) {
    String label = defaultLabel(application);
    return forWholeGpus || label != null ? Optional.of(RequestConverter.unplanned(share, label, offers(application))) : Optional.empty();
  }

  Offers offers(RMApp application) {
    if (!forWholeGpus) {
      return Offers.NONE;
    }
    String queue = application.getQueue();
    String named = application.getApplicationSubmissionContext().getNodeLabelExpression();
    return new Offers() {
      @Override
      public boolean offersGpus(String label) {
        return NodeLabels.offersGpus(rm, label);
      }

      @Override
      public boolean becomesShares(String label, Resource required) {
        return NodeLabels.becomesShares(rm, label, required);
      }

      @Override
      public boolean areLabelsDue() {
        return NodeLabels.areLabelsDue(rm);
      }

      @Override
      public String label(Resource required, boolean constrained) {
        if (named != null && !named.trim().isEmpty()) {
          return named.trim();
        }
        String usual = NodeLabels.defaultLabel(rm, queue);
        return !usual.isEmpty() || !constrained && NodeLabels.isLeftToYarn(rm, required) ? usual : NodeLabels.labelForGpus(rm, queue, required, constrained);
      }
    };
  }

  /** Return where requests for GPUs go if neither a plan, nor the user, nor the queue says so; null for any node. */
  private String defaultLabel(RMApp application) {
    String queue = application.getQueue();
    String named = application.getApplicationSubmissionContext().getNodeLabelExpression();
    if (defaultLabel.isEmpty() || named != null && !named.isEmpty() || !NodeLabels.defaultLabel(rm, queue).isEmpty()) {
      return null;
    }
    return NodeLabels.usable(rm, queue, Collections.singletonList(defaultLabel), Resources.none()).stream().findFirst().orElse(null);
  }

  /** Return the generation to begin on: the application's own label, else the plan's first; null if the user named another label. */
  private String label(RMApp application, Plan plan) {
    String named = application.getApplicationSubmissionContext().getNodeLabelExpression();
    if (named != null && !named.isEmpty()) {
      return plan.labels.contains(named) ? named : null;
    }
    Resource required = plan.container(share);
    return NodeLabels.roomyFirst(rm, NodeLabels.usable(rm, application.getQueue(), plan.labels, required), required).stream().findFirst().orElse(null);
  }

  private Resource most(ApplicationAttemptId attempt) {
    return rm.getScheduler().getMaximumResourceCapability(queue(attempt));
  }

  private String queue(ApplicationAttemptId attempt) {
    return rm.getRMApps().get(attempt.getApplicationId()).getQueue();
  }

  private int remaining(ApplicationAttemptId attempt, SchedulerRequestKey key) {
    SchedulerApplicationAttempt scheduled = ((AbstractYarnScheduler<?, ?>) rm.getScheduler()).getApplicationAttempt(attempt);
    return scheduled == null ? 0 : scheduled.getPendingAsk(key, ResourceRequest.ANY).getCount();
  }

  /** Return the generation after {@code label}: the next one with room for {@code required}, else the next. */
  private String following(ApplicationAttemptId attempt, List<String> labels, String label, Resource required) {
    List<String> usable = new ArrayList<>(NodeLabels.usable(rm, queue(attempt), labels, required));
    Collections.rotate(usable, -(usable.indexOf(label) + 1));
    usable.remove(label);
    return NodeLabels.roomyFirst(rm, usable, required).stream().findFirst().orElse(label);
  }

  private boolean isOver(ApplicationAttemptId attempt) {
    RMApp application = rm.getRMApps().get(attempt.getApplicationId());
    return application == null || application.getFinishTime() > 0;
  }

  private static boolean isSame(ResourceRequest ask, ResourceRequest other) {
    return ask.getResourceName().equals(other.getResourceName()) && SchedulerRequestKey.create(ask).equals(SchedulerRequestKey.create(other));
  }
}
