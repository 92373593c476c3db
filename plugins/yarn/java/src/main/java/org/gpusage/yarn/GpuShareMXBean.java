// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.Map;
import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;

/** What gpusage says of itself in a daemon's /jmx, as {@code org.gpusage:type=Metrics}. */
@InterfaceAudience.Public
@InterfaceStability.Evolving
public interface GpuShareMXBean {
  /** Return the jar's version. */
  String getVersion();

  /** Return the classes of ours that started in this daemon, with commas between them. */
  String getClasses();

  /** Return what can still be given out of each GPU of this node, in hundredths: {@code 0=60,1=100}. */
  String getFree();

  /** Return what containers that ended on this node really did, as their samplers wrote it. */
  String getUsage();

  /** Return what is wrong now, a line each. */
  String getTroubles();

  /** Return how many exceptions of ours were kept from the daemon. */
  long getFailures();

  /** Return every counter, by its name; they are in Hadoop's metrics as well. */
  Map<String, Long> getCounts();
}
