// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import org.apache.hadoop.yarn.api.records.ContainerExitStatus;

/** How a container ended, in the terms that matter to its master. */
enum ContainerOutcome {
  /** It ended by itself, with success. */
  SUCCEEDED,
  /** It never began: its node had no room for the share. */
  REFUSED,
  /** YARN took it to make room for others; that is no failure, however often it happens. */
  PREEMPTED,
  /** It was lost with its node, or with a part of the node. */
  LOST,
  /** It ended by itself, with a failure: the GPU had no memory left for it. */
  OUT_OF_MEMORY,
  /** It ended by itself, with a failure. */
  FAILED;

  private static final int NEVER_STARTED = -1;

  /** The exit status of a container whose end a restarted NodeManager missed. A command may also end with it; then we show its output. */
  static final int MISSED = 154;

  static ContainerOutcome of(int exit, String diagnostics) {
    switch (exit) {
      case ContainerExitStatus.SUCCESS:
        return SUCCEEDED;
      case ContainerExitStatus.PREEMPTED:
      case ContainerExitStatus.KILLED_BY_CONTAINER_SCHEDULER:
        return PREEMPTED;
      case ContainerExitStatus.ABORTED:
      case ContainerExitStatus.DISKS_FAILED:
      case ContainerExitStatus.KILLED_BY_RESOURCEMANAGER:
      case NEVER_STARTED:
        return LOST;
      case MISSED:
        return hasOutput(diagnostics) ? FAILED : LOST;
      case GpuShareNodeListener.REFUSED_STATUS:
        return diagnostics.contains(GpuShareNodeListener.REFUSAL) ? REFUSED : hasOutput(diagnostics) ? FAILED : LOST;
      default:
        return exit > 0 && Rescue.isOutOfMemory(diagnostics) ? OUT_OF_MEMORY : FAILED;
    }
  }

  /** Return whether {@code diagnostics} has what the container wrote. A NodeManager that dies between its end and the report of it has only the status left. */
  private static boolean hasOutput(String diagnostics) {
    return diagnostics.contains("prelaunch.err");
  }
}
