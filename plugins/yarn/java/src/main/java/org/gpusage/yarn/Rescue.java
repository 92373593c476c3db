// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * Decides whether a command that ran out of GPU memory in its share runs once more, with a whole GPU.
 *
 * <p>Never a loop: each container's command at most once, and only by an application's first master, because a second one does not know what
 * the first one did.
 */
final class Rescue {
  /** The words of CUDA and of those who call it. The node's task_epilog.sh has the same words for Slurm. */
  static final Pattern OUT_OF_MEMORY =
      Pattern.compile(
          "(CUDA|cuda runtime|CUDA runtime) error.*: *out of memory|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY"
              + "|cudaErrorMemoryAllocation|(torch|cupy)\\.([a-z]+\\.)*OutOfMemoryError|OOM when allocating tensor"
              + "|RESOURCE_EXHAUSTED.*([Oo]ut of memory|[Aa]llocat|OOM)|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED");

  private static final int SHOWN_CHARACTERS = 2000;

  private final boolean enabled;
  private final boolean sharesKnown;
  private final int attempt;
  private long mostShare = Settings.WHOLE_GPU;
  private final StringBuilder messages = new StringBuilder();

  /**
   * Make an application's.
   *
   * @param attempt which of its masters this is, from 1
   */
  Rescue(Configuration conf, int attempt) {
    enabled = conf.getBoolean(Settings.RESCUE, true);
    sharesKnown = ResourceUtils.getResourceTypes().containsKey(Settings.shareResource(conf));
    this.attempt = attempt;
  }

  /** Note how much of a GPU the queue allows one container. */
  void limit(long mostShare) {
    this.mostShare = mostShare;
  }

  /** Return whether {@code message}, which has the end of a failed container's stderr, says that the GPU had no memory left. */
  static boolean isOutOfMemory(String message) {
    return OUT_OF_MEMORY.matcher(message).find();
  }

  /** Return whether {@code task}, whose {@code share} had too little memory, is to run again; then its plan is for a whole GPU. */
  boolean retriesOnWholeGpu(Task task, long share) {
    String refusal = refusal(task.plan, share);
    boolean again = refusal.isEmpty();
    String message = task.container.getId() + " ran out of GPU memory in its share of " + share + ", and its command "
        + (again ? "ran again with a whole GPU" : "did not run again: " + refusal);
    GpuShareApplicationMaster.log(message);
    if (messages.length() + message.length() < SHOWN_CHARACTERS) {
      messages.append(". ").append(message);
    }
    if (again) {
      task.plan = task.plan.ofWholeGpu();
    }
    return again;
  }

  /** Return what the user is told of it in the application's diagnostics, after a first sentence; nothing if nobody starved. */
  String messages() {
    return messages.toString();
  }

  /** Return why a command that starved in {@code share} under {@code plan} does not run again; nothing if it does. */
  String refusal(Plan plan, long share) {
    if (plan.share >= Settings.WHOLE_GPU || share >= Settings.WHOLE_GPU) {
      return "it had a whole GPU";
    }
    if (!plan.rescue) {
      return "it was submitted with --no-rescue, or at a site with sharing.rescue = false";
    }
    if (mostShare < Settings.WHOLE_GPU) {
      return "its queue allows no container a whole GPU";
    }
    if (!enabled) {
      return "the site has set " + Settings.RESCUE + " to false";
    }
    if (!sharesKnown) {
      return "its master's node has no resource-types.xml with shares";
    }
    return attempt == 1 ? "" : "an earlier master may have run it again before";
  }
}
