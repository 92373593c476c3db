package org.gpusage.yarn;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;

/**
 * Which container has how much of which GPU of this node: best fit, and never more than a whole GPU.
 *
 * <p>Each change goes to the journal, so that a NodeManager that starts again knows what its containers still use: a line a container, moved
 * into place whole. A line that cannot be read is left out; on a disk that takes none, the bindings hold as long as the NodeManager.
 */
final class Bindings {

  /** A container's part of a GPU. */
  private static final class Binding {
    private final String gpu;
    private final long share;

    private Binding(String gpu, long share) {
      this.gpu = gpu;
      this.share = share;
    }
  }

  private final List<String> gpus;
  private final Path journal;
  private final Map<String, Binding> bound = new LinkedHashMap<>();

  /**
   * Take up what the journal says.
   *
   * @param journal where bindings are kept; null where no container outlives the NodeManager
   */
  Bindings(List<String> gpus, Path journal) {
    this.gpus = gpus;
    this.journal = journal;
    if (journal != null) {
      read();
    }
  }

  /** Return the GPU of {@code container}: the one it has, else the fullest one that can still hold {@code share}; none where none can. */
  synchronized Optional<String> bind(String container, long share) {
    Binding held = bound.get(container);
    if (held != null) {
      return Optional.of(held.gpu);
    }
    String best = null;
    for (String gpu : gpus) {
      long free = free(gpu);
      if (free >= share && (best == null || free < free(best))) {
        best = gpu;
      }
    }
    if (best != null) {
      bound.put(container, new Binding(best, share));
      write();
    }
    return Optional.ofNullable(best);
  }

  synchronized Optional<String> gpuOf(String container) {
    return Optional.ofNullable(bound.get(container)).map(binding -> binding.gpu);
  }

  synchronized void release(String container) {
    if (bound.remove(container) != null) {
      write();
    }
  }

  /** Release each container of which {@code lives} says no: its end was missed. */
  synchronized void keepOnly(Predicate<String> lives) {
    if (bound.keySet().removeIf(lives.negate())) {
      write();
    }
  }

  synchronized long free(String gpu) {
    long used = 0;
    for (Binding binding : bound.values()) {
      used += binding.gpu.equals(gpu) ? binding.share : 0;
    }
    return Settings.WHOLE_GPU - used;
  }

  private void read() {
    try {
      Files.createDirectories(journal.getParent());
      String text = Files.exists(journal) ? new String(Files.readAllBytes(journal), StandardCharsets.UTF_8) : "";
      for (String line : text.split("\n")) {
        String[] words = line.split(" ");
        if (words.length == 3 && gpus.contains(words[1]) && words[2].matches("[0-9]{1,3}")) {
          bound.put(words[0], new Binding(words[1], Long.parseLong(words[2])));
        }
      }
    } catch (IOException unreadable) {
      Metrics.contain("journal's reading", unreadable);
    }
  }

  private void write() {
    if (journal == null) {
      return;
    }
    List<String> lines = new ArrayList<>();
    bound.forEach((container, binding) -> lines.add(container + " " + binding.gpu + " " + binding.share));
    Path fresh = journal.resolveSibling(journal.getFileName() + ".new");
    try {
      Files.write(fresh, lines, StandardCharsets.UTF_8);
      Files.move(fresh, journal, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    } catch (IOException unwritable) {
      Metrics.contain("journal's writing", unwritable);
    }
  }
}
