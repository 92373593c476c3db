package org.gpusage.yarn;

import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.util.resource.DominantResourceCalculator;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * Snaps each request's share to the site's steps, so that nobody bypasses them, and counts a node as full for a share that none of its GPUs has
 * room for.
 *
 * <p>YARN calls {@link #computeAvailableContainers} thousands of times per second, and an exception there ends the ResourceManager: what we add
 * looks at GPUs only where the stock calculator has found room for a share on a node.
 */
public class GpuShareResourceCalculator extends DominantResourceCalculator implements Configurable {
  private static volatile boolean running;

  private Configuration conf;
  private KillSwitch off;
  private String share;
  private ShareSteps steps;

  @Override
  public void setConf(Configuration conf) {
    this.conf = conf;
    try {
      configure(conf);
    } catch (Throwable failure) {
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
    } catch (Throwable failure) {
      Metrics.recordFailure("calculator.normalize", failure);
      return stock;
    }
  }

  @Override
  public long computeAvailableContainers(Resource available, Resource required) {
    long stock = super.computeAvailableContainers(available, required);
    return stock > 0 && GpuSharePlacementAllocator.lacksRoom(available, required) ? 0 : stock;
  }

  void configure(Configuration conf) {
    off = Settings.offSwitch(conf);
    share = Settings.shareResource(conf);
    steps = new ShareSteps(conf.getTrimmed(Settings.SHARE_STEPS, ShareSteps.DEFAULT));
    running = true;
    Metrics.started(this);
  }

  /** Return whether this calculator, or one that extends it, works in this daemon. */
  static boolean isRunning() {
    return running;
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
