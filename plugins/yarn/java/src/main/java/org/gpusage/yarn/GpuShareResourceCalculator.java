// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.concurrent.ConcurrentMap;
import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;
import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.thirdparty.com.google.common.collect.MapMaker;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.util.resource.DominantResourceCalculator;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * Snaps each request's share to the site's steps, so that nobody bypasses them, and counts a node as full for a share that none of its GPUs has
 * room for.
 *
 * <p>YARN calls {@link #computeAvailableContainers} thousands of times per second, and whatever is thrown there ends the ResourceManager, errors of
 * linking after a jar was replaced included: they are kept, too. What we add looks at GPUs only where the stock calculator has found room for a
 * share on a node.
 */
@InterfaceAudience.Public
@InterfaceStability.Evolving
public class GpuShareResourceCalculator extends DominantResourceCalculator implements Configurable {
  /** Each node by the object with what it has left, which YARN hands to a calculator without saying whose it is; queues' are not in here. */
  private final ConcurrentMap<Resource, SchedulerNode> nodes = new MapMaker().weakKeys().weakValues().makeMap(); // by identity

  private Configuration conf;
  private KillSwitch off;
  private String share = Settings.DEFAULT_SHARE_RESOURCE;
  private ShareSteps steps;

  @Override
  public void setConf(Configuration conf) {
    this.conf = conf;
    try {
      configure(conf);
    } catch (Exception | LinkageError failure) {
      steps = null;
      Metrics.recordFailure("calculator's configuration", failure);
    }
  }

  @Override
  public Configuration getConf() {
    return conf;
  }

  @Override
  public Resource normalize(Resource requested, Resource least, Resource most, Resource step) {
    Resource stock = super.normalize(requested, least, most, step);
    try {
      return snapped(stock, most);
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("calculator.normalize", failure);
      return stock;
    }
  }

  @Override
  public long computeAvailableContainers(Resource available, Resource required) {
    long stock = super.computeAvailableContainers(available, required);
    try {
      return stock > 0 && lacksRoom(available, required) ? 0 : stock;
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("calculator.computeAvailableContainers", failure);
      return stock;
    }
  }

  /** Know whose {@code node}'s resources are from now on, also after a change of its total, when YARN makes a new object; return it. */
  <N extends SchedulerNode> N know(N node) {
    Resource left = node.getUnallocatedResource();
    if (!nodes.containsKey(left)) { // which takes no lock
      nodes.put(left, node);
    }
    return node;
  }

  void configure(Configuration conf) {
    off = Settings.offSwitch(conf);
    share = Settings.shareResource(conf);
    steps = new ShareSteps(conf.getTrimmed(Settings.SHARE_STEPS, ShareSteps.DEFAULT));
    Metrics.started(this);
  }

  /** Return whether {@code available} is what a node has left, none of whose GPUs has room for the share in {@code required}. */
  boolean lacksRoom(Resource available, Resource required) {
    SchedulerNode node = NodeGpus.amount(required, share) > 0 ? nodes.get(available) : null;
    return node != null && !NodeGpus.hasRoom(node, required, share);
  }

  /** Return {@code stock} with its share on a step; a new object if that changes it. */
  Resource snapped(Resource stock, Resource most) {
    Integer index = steps == null ? null : ResourceUtils.getResourceTypeIndex().get(share);
    if (index == null) {
      return stock;
    }
    long requested = stock.getResourceValue(share);
    long snapped = steps.snap(requested, most.getResourceValue(share));
    if (snapped == requested || off.isOff()) {
      return stock;
    }
    Resource changed = Resource.newInstance(stock);
    changed.setResourceValue(share, snapped);
    Metrics.count(Metrics.Counter.SHARES_SNAPPED);
    return changed;
  }
}
