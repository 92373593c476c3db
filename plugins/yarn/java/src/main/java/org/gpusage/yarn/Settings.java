// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.File;
import org.apache.hadoop.conf.Configuration;

/** The keys {@code gpusage.*} of yarn-site.xml that several classes read. */
final class Settings {
  static final String SHARE_RESOURCE = "gpusage.share.resource";
  static final String SHARE_STEPS = "gpusage.share.steps";
  static final String FOR_WHOLE_GPUS = "gpusage.share.for-whole-gpus";
  static final String SWITCH_FILE = "gpusage.switch-file";
  static final String DEFAULT_LABEL = "gpusage.share.default-label";
  static final String DAEMON_SOCKET = "gpusage.daemon.socket";
  static final String DAEMON_LIMIT_MS = "gpusage.daemon.limit-ms";
  static final String DAEMON_REST_MS = "gpusage.daemon.rest-ms";
  static final String RESCUE = "gpusage.rescue";
  static final String HEARTBEAT_MS = "gpusage.am.heartbeat-ms";
  static final String NODE_GPUS = "gpusage.node.gpus";
  static final String NODE_MEMORY_MIB = "gpusage.node.gpu-memory-mib";
  static final String HIDE_GPUS = "gpusage.node.hide-gpus";
  static final String MPS_DIRECTORY = "gpusage.node.mps-directory";
  static final String MPS_COMMAND = "gpusage.node.mps-command";
  static final String ACROSS_USERS = "gpusage.node.across-users";
  static final String USAGE_COMMAND = "gpusage.node.usage-command";
  static final String USAGE_DIRECTORY = "gpusage.node.usage-directory";
  static final String MPS_CHECK_S = "gpusage.node.mps-check-s";

  /** The name of the resource for shares; one shared GPU has {@link #WHOLE_GPU} of it. */
  static final String DEFAULT_SHARE_RESOURCE = "gpusage.io/share";

  static final int WHOLE_GPU = 100;
  static final String GPU_RESOURCE = "yarn.io/gpu";

  private Settings() {}

  static String shareResource(Configuration conf) {
    return conf.getTrimmed(SHARE_RESOURCE, DEFAULT_SHARE_RESOURCE);
  }

  static KillSwitch offSwitch(Configuration conf) {
    return KillSwitch.of(new File(conf.getTrimmed(SWITCH_FILE, "/etc/gpusage/off")));
  }

  /** Return how long one exchange with gpusaged may take: a submission waits for it under a lock of YARN's, and so does refreshQueues. */
  static long daemonLimitMs(Configuration conf) {
    return within(conf.getLong(DAEMON_LIMIT_MS, 200), 1, 2000);
  }

  /** Return for how long we do not ask a gpusaged that gave no answer. */
  static long daemonRestMs(Configuration conf) {
    return within(conf.getLong(DAEMON_REST_MS, 2000), 0, 60_000);
  }

  private static long within(long value, long least, long most) {
    return Math.max(least, Math.min(value, most));
  }
}
