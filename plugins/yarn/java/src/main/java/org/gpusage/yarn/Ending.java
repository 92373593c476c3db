package org.gpusage.yarn;

import org.apache.hadoop.yarn.api.records.ContainerExitStatus;

/** How a container ended, as its master is to take it. */
enum Ending {
  /** By itself, well. */
  DONE,
  /** Its node had no room for the share: it never began. */
  REFUSED,
  /** YARN took it for others; that is no failure, however often it happens. */
  TAKEN,
  /** With its node, or a part of it. */
  LOST,
  /** By itself, badly. */
  FAILED;

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
        return LOST;
      case GpuShareNodeListener.REFUSED_STATUS:
        return story.contains(GpuShareNodeListener.REFUSAL) ? REFUSED : FAILED;
      default:
        return FAILED;
    }
  }
}
