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
  private static final Pattern STARVED =
      Pattern.compile(
          "(CUDA|cuda runtime|CUDA runtime) error.*: *out of memory|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY"
              + "|cudaErrorMemoryAllocation|(torch|cupy)\\.([a-z]+\\.)*OutOfMemoryError|OOM when allocating tensor"
              + "|RESOURCE_EXHAUSTED.*([Oo]ut of memory|[Aa]llocat|OOM)|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED");

  private static final int SHOWN_CHARACTERS = 2000;

  private final boolean wanted;
  private final boolean sharesKnown;
  private final int attempt;
  private final StringBuilder stories = new StringBuilder();

  /**
   * Make an application's.
   *
   * @param attempt which of its masters this is, from 1
   */
  Rescue(Configuration conf, int attempt) {
    wanted = conf.getBoolean(Settings.RESCUE, true);
    sharesKnown = ResourceUtils.getResourceTypes().containsKey(Settings.shareResource(conf));
    this.attempt = attempt;
  }

  /** Tell whether {@code story}, which has the end of a failed container's stderr, says that the GPU had no memory left. */
  static boolean isStarved(String story) {
    return STARVED.matcher(story).find();
  }

  /** Tell whether {@code task}, whose {@code share} had too little memory, is to run again; then its plan is for a whole GPU. */
  boolean helps(Task task, long share) {
    String refusal = refusal(task.plan, share);
    boolean again = refusal.isEmpty();
    String story = task.container.getId() + " ran out of GPU memory in its share of " + share + ", and its command "
        + (again ? "ran again with a whole GPU" : "did not run again: " + refusal);
    GpuShareApplicationMaster.say(story);
    if (stories.length() + story.length() < SHOWN_CHARACTERS) {
      stories.append(". ").append(story);
    }
    if (again) {
      task.plan = task.plan.ofWholeGpu();
    }
    return again;
  }

  /** Return what the user is told of it in the application's diagnostics, after a first sentence; nothing if nobody starved. */
  String stories() {
    return stories.toString();
  }

  /** Return why a command that starved in {@code share} under {@code plan} does not run again; nothing if it does. */
  String refusal(Plan plan, long share) {
    if (plan.share >= Settings.WHOLE_GPU || share >= Settings.WHOLE_GPU) {
      return "it had a whole GPU";
    }
    if (!plan.rescue) {
      return "it was submitted with --no-rescue, or at a site with sharing.rescue = false";
    }
    if (!wanted) {
      return "the site has set " + Settings.RESCUE + " to false";
    }
    if (!sharesKnown) {
      return "its master's node has no resource-types.xml with shares";
    }
    return attempt == 1 ? "" : "an earlier master may have run it again before";
  }
}
