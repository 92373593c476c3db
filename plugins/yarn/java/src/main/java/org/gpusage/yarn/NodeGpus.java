// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * What is free of each GPU of one node, as the ResourceManager gave it out.
 *
 * <p>Nothing is kept here: each container carries the numbers of its GPUs as allocation tags, which travel in its token to the NodeManager, and
 * from there back to a ResourceManager that was restarted. A container without such a tag, or with a false one, counts where
 * best fit would put it.
 */
final class NodeGpus {
  /** How our tags begin; the processor refuses those of users that begin so. */
  static final String RESERVED = "gpusage-";

  private static final String GPU = RESERVED + "gpu-";
  private static final String THREADS = RESERVED + "threads-";
  private static final String APART = RESERVED + "apart";

  static final int MOST_GPUS = 1024;

  /** The tags of a container that has one GPU and the threads of its share, as nearly all: all of them carry the same object. */
  private static final List<Set<String>> TAGS =
      IntStream.range(0, MOST_GPUS).mapToObj(number -> Collections.singleton(GPU + number)).collect(Collectors.toList());

  /** The number in each tag: an allocation looks at those of all containers of a node, several times. */
  private static final Map<String, List<Integer>> NUMBERS =
      IntStream.range(0, MOST_GPUS).boxed().collect(Collectors.toMap(number -> GPU + number, Collections::singletonList));

  private final long[] free;

  /** The GPUs with a container of the application whose containers must be apart. */
  final Set<Integer> barred;

  private NodeGpus(long[] free, Set<Integer> barred) {
    this.free = free;
    this.barred = barred;
  }

  static NodeGpus of(SchedulerNode node, String share) {
    return of(node, share, null);
  }

  /** Return likewise, where GPUs with a container of the application {@code apart} have nothing free, unless that is null. */
  static NodeGpus of(SchedulerNode node, String share, ApplicationId apart) {
    NodeGpus gpus = new NodeGpus(offered(amount(node.getTotalResource(), share)), apart == null ? Collections.emptySet() : new HashSet<>());
    List<Long> untagged = new ArrayList<>();
    for (RMContainer container : node.getCopiedListOfRunningContainers()) {
      long held = amount(container.getContainer().getResource(), share); // which takes no lock, and the scheduler asks very often
      if (held > 0) {
        List<Integer> numbers = numbers(container.getAllocationTags());
        if (gpus.exist(numbers, held)) {
          gpus.reserve(numbers, held);
          if (apart != null && apart.equals(container.getApplicationAttemptId().getApplicationId())) {
            gpus.barred.addAll(numbers);
          }
        } else {
          untagged.add(held);
        }
      }
    }
    untagged.sort(Collections.reverseOrder());
    untagged.forEach(held -> gpus.reserve(gpus.choose(held), held));
    gpus.barred.forEach(number -> gpus.free[number] = 0);
    return gpus;
  }

  /** Return what {@code total} is of each GPU; less than one is a part of one, else nothing would ever end the wait for it. */
  private static long[] offered(long total) {
    long count = total <= 0 ? 0 : Math.max(1, Math.min(total / Settings.WHOLE_GPU, MOST_GPUS));
    long[] offered = new long[(int) count];
    Arrays.fill(offered, Math.min(total, Settings.WHOLE_GPU));
    return offered;
  }

  /** Return whether each GPU has a container of the application that must be apart: whoever else ends, none becomes free for it. */
  boolean areAllBarred() {
    return !barred.isEmpty() && barred.size() == free.length;
  }

  private static long count(long share) {
    return share / Settings.WHOLE_GPU + (share % Settings.WHOLE_GPU > 0 ? 1 : 0);
  }

  /** Return whether {@code numbers} can be those of a container with {@code share}: a client of placement constraints can write tags like ours. */
  private boolean exist(List<Integer> numbers, long share) {
    return numbers.size() == count(share) && numbers.get(numbers.size() - 1) < free.length;
  }

  /** Return whether one GPU of {@code node} has room for the share in {@code required}; so it has for no share. */
  static boolean hasRoom(SchedulerNode node, Resource required, String share) {
    long requested = amount(required, share);
    return requested == 0 || !of(node, share).choose(requested).isEmpty();
  }

  /** Return the fullest GPU that has room for {@code share}, or as many free ones as it is whole GPUs; none if there is no room. */
  List<Integer> choose(long share) {
    if (share > Settings.WHOLE_GPU) {
      List<Integer> chosen = new ArrayList<>();
      long count = count(share);
      for (int number = 0; number < free.length && chosen.size() < count; number++) {
        if (free[number] == Settings.WHOLE_GPU) {
          chosen.add(number);
        }
      }
      return chosen.size() == count ? chosen : Collections.emptyList();
    }
    int best = -1;
    for (int number = 0; number < free.length; number++) {
      if (free[number] >= share && (best < 0 || free[number] < free[best])) {
        best = number;
      }
    }
    return best < 0 ? Collections.emptyList() : Collections.singletonList(best);
  }

  /**
   * Return the tags of a container that has these GPUs.
   *
   * @param threads the percentage of their threads that it may use, if that is more than its share
   * @param apart whether no other container of its application may have them
   */
  static Set<String> tags(List<Integer> numbers, long threads, boolean apart) {
    if (numbers.size() == 1 && threads == 0 && !apart) {
      return TAGS.get(numbers.get(0));
    }
    Set<String> tags = new LinkedHashSet<>();
    numbers.forEach(number -> tags.add(GPU + number));
    if (threads > 0 && !numbers.isEmpty()) {
      tags.add(THREADS + threads);
    }
    if (apart && !numbers.isEmpty()) {
      tags.add(APART);
    }
    return tags;
  }

  /** Return the numbers of the GPUs that a container's {@code tags} name, in order. */
  static List<Integer> numbers(Collection<String> tags) {
    List<Integer> numbers = Collections.emptyList();
    for (String tag : tags == null ? Collections.<String>emptyList() : tags) {
      List<Integer> number = NUMBERS.get(tag);
      if (number != null) {
        numbers = numbers.isEmpty() ? number : Stream.concat(numbers.stream(), number.stream()).sorted().collect(Collectors.toList());
      }
    }
    return numbers;
  }

  /** Return the percentage of threads that a container's {@code tags} name; 0 if they name none. */
  static long threads(Collection<String> tags) {
    Collection<String> known = tags == null ? Collections.emptyList() : tags;
    return known.stream().filter(tag -> tag.matches(THREADS + "([1-9][0-9]?|100)")).findFirst()
        .map(tag -> Long.parseLong(tag.substring(THREADS.length()))).orElse(0L);
  }

  static boolean hasReserved(Collection<String> tags) {
    return tags != null && tags.stream().anyMatch(tag -> tag.startsWith(RESERVED));
  }

  static boolean isApart(Collection<String> tags) {
    return tags != null && tags.contains(APART);
  }

  static long amount(Resource resource, String type) {
    Integer index = resource == null ? null : ResourceUtils.getResourceTypeIndex().get(type);
    return index == null ? 0 : resource.getResourceInformation(index).getValue();
  }

  /** Return how many GPUs of YARN's own the site's settings let a container have. */
  static long siteMaximum() {
    return amount(ResourceUtils.getResourceTypesMaximumAllocation(), Settings.GPU_RESOURCE);
  }

  private void reserve(List<Integer> numbers, long share) {
    for (int number : numbers) {
      free[number] -= Math.min(share, Settings.WHOLE_GPU);
    }
  }
}
