// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/**
 * Knows which container has how much of which GPU of this node: best fit, and never more than a whole GPU.
 *
 * <ol>
 *   <li>A container's GPU never changes, and is never guessed: it was bound here, or the NodeManager's state store has it.
 *   <li>If a container's GPU is unknown, or its name is not one of this node's, no GPU that it may be is bound until the container ends.
 * </ol>
 */
final class Bindings {

  /** A container's part of a GPU, or its whole GPUs. */
  static final class Binding {
    /** The GPUs' names; none where they are not known. */
    final List<String> gpus;

    final long share;

    Binding(List<String> gpus, long share) {
      this.gpus = gpus;
      this.share = share;
    }

    /** Return the GPUs as CUDA_VISIBLE_DEVICES names them. */
    String devices() {
      return String.join(",", gpus);
    }
  }

  private final List<String> gpus;
  private final Map<String, Binding> bound = new LinkedHashMap<>();

  Bindings(List<String> gpus) {
    this.gpus = gpus;
  }

  /**
   * Return what {@code container} has: what it has already, else of the GPUs {@code assigned} to it, else of the fullest that can still hold
   * {@code share}; nothing if none can.
   *
   * @param assigned the GPUs that the ResourceManager bound it to; none if it did not
   * @param partners tells which other containers it must not share a GPU with
   */
  synchronized Optional<Binding> bind(String container, long share, List<String> assigned, Predicate<String> partners) {
    if (bound.containsKey(container)) {
      return of(container);
    }
    Set<String> barred = new HashSet<>();
    bound.forEach((other, held) -> barred.addAll(partners.test(other) ? held.gpus : new ArrayList<>()));
    long count = (share + Settings.WHOLE_GPU - 1) / Settings.WHOLE_GPU;
    long each = Math.min(share, Settings.WHOLE_GPU);
    List<String> roomy =
        gpus.stream()
            .filter(gpu -> free(gpu) >= each && !barred.contains(gpu))
            .sorted(Comparator.comparing((String gpu) -> !assigned.contains(gpu)).thenComparing(this::free))
            .limit(count)
            .collect(Collectors.toList());
    if (roomy.size() < count) {
      return Optional.empty();
    }
    bound.put(container, new Binding(roomy, share));
    return of(container);
  }

  /** Add a container that was started before, with what is known of it, unless it is here already. */
  synchronized void adopt(String container, Binding binding) {
    bound.putIfAbsent(container, binding);
  }

  synchronized boolean has(String container) {
    return bound.containsKey(container);
  }

  /** Return what {@code container} has, if that is known. */
  synchronized Optional<Binding> of(String container) {
    return Optional.ofNullable(bound.get(container)).filter(binding -> !binding.gpus.isEmpty());
  }

  synchronized void release(String container) {
    bound.remove(container);
  }

  /** Return how much of {@code gpu} can still be given out. */
  synchronized long free(String gpu) {
    long used = 0;
    for (Binding binding : bound.values()) {
      if (binding.gpus.isEmpty()) {
        return 0;
      }
      for (String held : binding.gpus) {
        if (held.equals(gpu)) {
          used += Math.min(binding.share, Settings.WHOLE_GPU);
        } else if (!gpus.contains(held) && NodeSettings.mayBeSame(held, gpu)) {
          return 0;
        }
      }
    }
    return Math.max(0, Settings.WHOLE_GPU - used);
  }

  /** Return how much of each GPU can still be given out, for /jmx: {@code 0=60,1=100}. */
  synchronized String free() {
    return gpus.stream().map(gpu -> gpu + "=" + free(gpu)).collect(Collectors.joining(","));
  }
}
