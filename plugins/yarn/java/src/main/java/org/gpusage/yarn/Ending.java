package org.gpusage.yarn;

import org.apache.hadoop.yarn.api.records.ContainerExitStatus;

/** How a container ended, in the terms that matter to its master. */
enum Ending {
  /** It ended by itself, with success. */
  DONE,
  /** It never began: its node had no room for the share. */
  REFUSED,
  /** YARN took it to make room for others; that is no failure, however often it happens. */
  TAKEN,
  /** It was lost with its node, or with a part of the node. */
  LOST,
  /** It ended by itself, with a failure: the GPU had no memory left for it. */
  STARVED,
  /** It ended by itself, with a failure. */
  FAILED;

  private static final int NEVER_STARTED = -1;

  /** The exit status of a container whose end a restarted NodeManager missed. A command may also end with it; then we show its output. */
  static final int MISSED = 154;

  static Ending of(int exit, String story) {
    switch (exit) {
      case ContainerExitStatus.SUCCESS:
        return DONE;
      case ContainerExitStatus.PREEMPTED:
      case ContainerExitStatus.KILLED_BY_CONTAINER_SCHEDULER:
        return TAKEN;
      case ContainerExitStatus.ABORTED:
      case ContainerExitStatus.DISKS_FAILED:
      case ContainerExitStatus.KILLED_BY_RESOURCEMANAGER:
      case NEVER_STARTED:
        return LOST;
      case MISSED:
        return hasOutput(story) ? FAILED : LOST;
      case GpuShareNodeListener.REFUSED_STATUS:
        return story.contains(GpuShareNodeListener.REFUSAL) ? REFUSED : hasOutput(story) ? FAILED : LOST;
      default:
        return exit > 0 && Rescue.isStarved(story) ? STARVED : FAILED;
    }
  }

  /** Tell whether {@code story} has what the container wrote. A NodeManager that dies between its end and the report of it has only the status left. */
  private static boolean hasOutput(String story) {
    return story.contains("prelaunch.err");
  }
}
