package org.gpusage.yarn;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/**
 * Keeps which container has how much of which GPU of this node: best fit, and never more than a whole GPU.
 *
 * <ol>
 *   <li>A container's GPU never changes, and is never guessed: it was bound here, or is known from how the container was started.
 *   <li>If a container's GPU is unknown, or its name is not one of this node's, no GPU that it may be is bound until the container ends.
 *   <li>Each change goes to the journal: one line per container, and the file is replaced whole. Lines that cannot be read are left out. If the
 *       disk takes no journal, binding goes on: the launch script tells about a container that the journal lacks.
 * </ol>
 */
final class Bindings {

  /** A container's part of a GPU, or its whole GPUs. */
  static final class Binding {
    static final String UNKNOWN = "?";

    /** The GPU's name; with commas between them where the container has several. */
    final String gpu;

    final long share;

    Binding(String gpu, long share) {
      this.gpu = gpu;
      this.share = share;
    }

    boolean isKnown() {
      return !gpu.equals(UNKNOWN);
    }

    /** Return whether it has as many GPUs as its share is. */
    boolean isSound() {
      return gpus().size() == count(share);
    }

    static long count(long share) {
      return Math.max(1, (share + Settings.WHOLE_GPU - 1) / Settings.WHOLE_GPU);
    }

    List<String> gpus() {
      return Arrays.asList(gpu.split(","));
    }
  }

  private final List<String> gpus;
  private final Path journal;
  private final Map<String, Binding> bound = new LinkedHashMap<>();

  /**
   * Take up what the journal says.
   *
   * @param journal where bindings are kept; null if no container outlives the NodeManager
   */
  Bindings(List<String> gpus, Path journal) {
    this.gpus = gpus;
    this.journal = journal;
    if (journal != null) {
      read();
    }
  }

  /**
   * Return the GPU of {@code container}: the one it has, else the one that is {@code assignedGpus} for it, else the fullest one that can still hold
   * {@code share}; none if none can.
   *
   * @param assignedGpus the GPUs that the ResourceManager bound it to; none if it did not
   * @param anyGpu whether another GPU will do where those have no room
   */
  synchronized Optional<String> bind(String container, long share, List<String> assignedGpus, boolean anyGpu) {
    if (bound.containsKey(container)) {
      return of(container).map(held -> held.gpu);
    }
    long count = Binding.count(share);
    long each = Math.min(share, Settings.WHOLE_GPU);
    List<String> chosen = assignedGpus.stream().filter(gpu -> gpus.contains(gpu) && free(gpu) >= each).collect(Collectors.toList());
    if (chosen.size() != count && (assignedGpus.isEmpty() || anyGpu)) {
      chosen =
          gpus.stream()
              .filter(gpu -> free(gpu) >= each)
              .sorted(Comparator.comparingLong((String gpu) -> free(gpu)))
              .limit(count)
              .collect(Collectors.toList());
    }
    if (chosen.size() != count) {
      return Optional.empty();
    }
    put(container, new Binding(String.join(",", chosen), share));
    return of(container).map(held -> held.gpu);
  }

  /** Add a container that was started before, with what is known of it, unless it is here already. */
  synchronized void adopt(String container, Binding binding) {
    if (!bound.containsKey(container)) {
      put(container, binding);
    }
  }

  synchronized boolean has(String container) {
    return bound.containsKey(container);
  }

  /** Return what {@code container} has, if that is known. */
  synchronized Optional<Binding> of(String container) {
    return Optional.ofNullable(bound.get(container)).filter(Binding::isKnown);
  }

  synchronized void release(String container) {
    if (bound.remove(container) != null) {
      write();
    }
  }

  /** Release each container that {@code isAlive} says no to: we missed its end. */
  synchronized void retainOnly(Predicate<String> isAlive) {
    if (bound.keySet().removeIf(isAlive.negate())) {
      write();
    }
  }

  /** Return how much of {@code gpu} can still be given out. */
  synchronized long free(String gpu) {
    long used = 0;
    for (Binding binding : bound.values()) {
      for (String held : binding.gpus()) {
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

  private void put(String container, Binding binding) {
    bound.put(container, binding);
    write();
  }

  private void read() {
    try {
      Files.createDirectories(journal.getParent());
      String text = Files.exists(journal) ? new String(Files.readAllBytes(journal), StandardCharsets.UTF_8) : "";
      for (String line : text.split("\n")) {
        String[] words = line.split(" ");
        if (words.length == 3 && words[1].matches(NodeSettings.NAMES) && words[2].matches("[1-9][0-9]{0,5}")) {
          bound.put(words[0], new Binding(words[1], Long.parseLong(words[2])));
        }
      }
    } catch (IOException unreadable) {
      Metrics.recordFailure("journal's reading", unreadable);
    }
  }

  /** Write down what is known. The rest is looked for again after a restart. */
  private void write() {
    if (journal == null) {
      return;
    }
    List<String> lines = new ArrayList<>();
    bound.forEach(
        (container, binding) -> {
          if (binding.isKnown()) {
            lines.add(container + " " + binding.gpu + " " + binding.share);
          }
        });
    Path fresh = journal.resolveSibling(journal.getFileName() + ".new");
    try {
      Files.write(fresh, lines, StandardCharsets.UTF_8);
      Files.move(fresh, journal, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
      Metrics.clearTrouble("journal");
    } catch (IOException unwritable) {
      Metrics.recordFailure("journal's writing", unwritable);
      Metrics.trouble("journal", "cannot be written: " + unwritable);
    }
  }
}
