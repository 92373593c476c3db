// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;
import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.placement.ApplicationPlacementContext;
import org.apache.hadoop.yarn.server.resourcemanager.placement.PlacementRule;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Gives a submission with a plan its node label. If it has a model's card and no plan, asks gpusaged for a plan first.
 *
 * <p>It never chooses a queue: its answer is always null, so that the next rule decides. A submission that is being recovered is left alone
 * before anything else, because an exception then keeps the ResourceManager from starting.
 */
@InterfaceAudience.Public
@InterfaceStability.Evolving
public class GpuSharePlacementRule extends PlacementRule implements Configurable {
  private static final Logger LOG = LoggerFactory.getLogger(GpuSharePlacementRule.class);

  private Configuration conf;
  private KillSwitch off;
  private PlanRequester planRequester;
  private RMContext rm;

  @Override
  public void setConf(Configuration conf) {
    this.conf = conf;
  }

  @Override
  public Configuration getConf() {
    return conf;
  }

  @Override
  public boolean initialize(ResourceScheduler scheduler) throws IOException {
    try {
      start(scheduler);
      return true;
    } catch (Exception failure) { // YARN leaves out a rule that answers false; an exception keeps the ResourceManager from starting
      Metrics.recordFailure("rule.initialize", failure);
      return false;
    }
  }

  @Override
  public ApplicationPlacementContext getPlacementForApp(ApplicationSubmissionContext application, String user)
      throws YarnException {
    return getPlacementForApp(application, user, false);
  }

  @Override
  public ApplicationPlacementContext getPlacementForApp(
      ApplicationSubmissionContext application, String user, boolean recovery) throws YarnException {
    if (recovery) {
      return null;
    }
    try {
      convertMasterRequest(application);
      limitPlan(application);
      if (!off.isOff()) {
        place(application, user);
      }
    } catch (Plan.PlanException refusal) {
      Metrics.count(Metrics.Counter.PLANS_REFUSED);
      LOG.warn("gpusage: {} goes on without its plan. {}", application.getApplicationId(), refusal.getMessage());
    } catch (Exception failure) { // whatever it is, the submission goes on; an error is answered to its client by YARN
      Metrics.recordFailure("rule.place", failure);
    }
    return null;
  }

  void start(ResourceScheduler scheduler) {
    rm = ((CapacityScheduler) scheduler).getRMContext();
    off = Settings.offSwitch(conf);
    planRequester = new PlanRequester(conf);
    planRequester.warmUp();
    Metrics.started(this);
  }

  void place(ApplicationSubmissionContext application, String user) throws Exception {
    ContainerLaunchContext master = application.getAMContainerSpec();
    if (master == null) {
      return;
    }
    String text = master.getEnvironment().get(Plan.VARIABLE);
    Plan plan = text == null ? planRequester.request(application, user) : Plan.parse(text);
    if (plan != null) {
      Metrics.count(Metrics.Counter.PLANS_TAKEN);
      label(application, plan);
    }
  }

  /** Take out of a plan that came with a submission what no scheduler counts: only gpusaged's answer gives more threads than the share. */
  static void limitPlan(ApplicationSubmissionContext application) throws Plan.PlanException, IOException {
    ContainerLaunchContext master = application == null ? null : application.getAMContainerSpec();
    if (master == null) {
      return;
    }
    application.getApplicationSchedulingPropertiesMap().remove(Plan.VARIABLE); // YARN lets these replace the master's variables
    String text = master.getEnvironment().get(Plan.VARIABLE);
    if (text != null) {
      master.getEnvironment().put(Plan.VARIABLE, Plan.parse(text).withoutThreads().toBase64());
    }
  }

  /** Give a master that asks for GPUs itself their label, and a share of 100 for each where its nodes offer shares alone, with the switch, too. */
  void convertMasterRequest(ApplicationSubmissionContext application) {
    if (application == null || !conf.getBoolean(Settings.FOR_WHOLE_GPUS, true)) {
      return;
    }
    List<ResourceRequest> masters = application.getAMContainerResourceRequests();
    boolean isListed = masters != null && !masters.isEmpty();
    Resource requested = isListed ? masters.get(0).getCapability() : application.getResource();
    long gpus = NodeGpus.amount(requested, Settings.GPU_RESOURCE);
    if (gpus == 0 || gpus > NodeGpus.siteMaximum()) {
      return;
    }
    String queue = application.getQueue();
    String named = first(isListed ? masters.get(0).getNodeLabelExpression() : null, application.getNodeLabelExpression(),
        conf.getTrimmed(YarnConfiguration.AM_DEFAULT_NODE_LABEL, ""), NodeLabels.defaultLabel(rm, queue));
    boolean isLeft = conf.getBoolean(YarnConfiguration.AM_ALLOW_NON_EXCLUSIVE_ALLOCATION, false) && NodeLabels.isLeftToYarn(rm, requested);
    String label = !named.isEmpty() || isLeft ? named : NodeLabels.labelForGpus(rm, queue, requested, false);
    boolean asShares = NodeLabels.becomesShares(rm, label, requested);
    if (!asShares && (label.isEmpty() || label.equals(named))) {
      return;
    }
    Resource ours = asShares ? RequestConverter.wholeShares(requested, Settings.shareResource(conf)) : requested;
    if (!isListed) {
      application.setResource(ours);
      if (named.isEmpty()) {
        application.setNodeLabelExpression(label);
      }
      return;
    }
    for (ResourceRequest master : masters) {
      master.setCapability(ours);
      if (named.isEmpty() && ResourceRequest.isAnyLocation(master.getResourceName())) {
        master.setNodeLabelExpression(label);
      }
    }
  }

  private static String first(String... texts) {
    return Arrays.stream(texts).filter(text -> !isEmpty(text)).map(String::trim).findFirst().orElse("");
  }

  /**
   * Label the application with the plan's first generation that has room, and its master with one that has room for it, unless its user named
   * a label.
   *
   * <p>If there are nodes without a label, the application gets no label, because its master would get the same one. The master goes to such a
   * node, takes no room from jobs that need a GPU, and {@link GpuShareProcessor} labels its requests.
   */
  private void label(ApplicationSubmissionContext application, Plan plan) {
    String queue = application.getQueue();
    Resource container = plan.container(Settings.shareResource(conf));
    List<String> usable = NodeLabels.roomyFirst(rm, NodeLabels.usable(rm, queue, plan.labels, container), container);
    if (!isEmpty(application.getNodeLabelExpression()) || usable.isEmpty()) {
      return;
    }
    List<ResourceRequest> masters = new ArrayList<>();
    boolean siteLabelsMasters = !conf.getTrimmed(YarnConfiguration.AM_DEFAULT_NODE_LABEL, "").isEmpty();
    boolean isListed = application.getAMContainerResourceRequests() != null && !application.getAMContainerResourceRequests().isEmpty();
    if (!siteLabelsMasters && isListed) {
      masters.addAll(application.getAMContainerResourceRequests());
    }
    masters.removeIf(ask -> !ResourceRequest.isAnyLocation(ask.getResourceName()) || !isEmpty(ask.getNodeLabelExpression()));
    List<Resource> sizes = masters.stream().map(ResourceRequest::getCapability).collect(Collectors.toList());
    if (!siteLabelsMasters && !isListed && application.getResource() != null) {
      sizes.add(application.getResource()); // as Spark says it
    }
    boolean processorRuns = conf.get(YarnConfiguration.RM_APPLICATION_MASTER_SERVICE_PROCESSORS, "").contains(GpuShareProcessor.class.getSimpleName());
    if (processorRuns && !sizes.isEmpty() && sizes.stream().allMatch(size -> NodeLabels.isOpenUnlabelled(rm, queue, size))) {
      return;
    }
    application.setNodeLabelExpression(usable.get(0));
    masters.forEach(ask -> ask.setNodeLabelExpression(NodeLabels.roomyFirst(rm, usable, ask.getCapability()).get(0)));
  }

  private static boolean isEmpty(String text) {
    return text == null || text.trim().isEmpty();
  }
}
