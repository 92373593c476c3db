package org.gpusage.yarn;

import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.util.resource.DominantResourceCalculator;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * Snaps each request's share to the site's steps, so that nobody bypasses them.
 *
 * <p>We override only {@link #normalize}. YARN calls the others thousands of times per second, and an exception there ends the ResourceManager.
 */
public class GpuShareResourceCalculator extends DominantResourceCalculator implements Configurable {
  private Configuration conf;
  private Switch off;
  private String share;
  private Steps steps;

  @Override
  public void setConf(Configuration conf) {
    this.conf = conf;
    try {
      configure(conf);
    } catch (Throwable failure) {
      steps = null;
      Metrics.contain("calculator's configuration", failure);
    }
  }

  @Override
  public Configuration getConf() {
    return conf;
  }

  @Override
  public Resource normalize(Resource asked, Resource least, Resource most, Resource step) {
    Resource stock = super.normalize(asked, least, most, step);
    try {
      return snapped(stock, most);
    } catch (Throwable failure) {
      Metrics.contain("calculator.normalize", failure);
      return stock;
    }
  }

  void configure(Configuration conf) {
    off = Settings.offSwitch(conf);
    share = Settings.shareResource(conf);
    steps = new Steps(conf.getTrimmed(Settings.SHARE_STEPS, Steps.DEFAULT));
    Metrics.started(this);
  }

  /** Return {@code stock} with its share on a step; a new object if that changes it. */
  Resource snapped(Resource stock, Resource most) {
    Integer index = steps == null ? null : ResourceUtils.getResourceTypeIndex().get(share);
    if (index == null) {
      return stock;
    }
    long asked = stock.getResourceValue(share);
    long snapped = steps.snap(asked, most.getResourceValue(share));
    if (snapped == asked || off.isOff()) {
      return stock;
    }
    Resource changed = Resource.newInstance(stock);
    changed.setResourceValue(share, snapped);
    Metrics.count(Metrics.Counter.SHARES_SNAPPED);
    return changed;
  }
}
