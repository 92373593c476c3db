// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Runs one program for each container with a share, from its start to its end, which samples what the container does on its GPU.
 *
 * <p>The program is started as {@code COMMAND CONTAINER GPU SHARE FOLDER}, ends at SIGTERM, and keeps the file {@code letter} in the folder. A
 * thread of our own does all of it: nobody waits, and no exception leaves.
 */
final class UsageSampler {
  private static final int LIMIT_BYTES = 8 * 1024;

  private final List<String> command;
  private final Path folder;
  private final Map<String, Process> running = new HashMap<>();
  private final ExecutorService thread = Executors.newSingleThreadExecutor(DaemonThreads.named("gpusage-usage"));

  /** Make a node's; without a {@code command} it does nothing. */
  UsageSampler(String command, Path folder) {
    this.command = command.isEmpty() ? new ArrayList<>() : Arrays.asList(command.split("\\s+"));
    this.folder = folder;
  }

  /** Begin with a container, whose {@code limits} are the variables that hold it to its share, as far as this user may try what they do. */
  void begin(String container, Bindings.Binding binding, Map<String, String> limits) {
    execute(() -> {
      if (!running.containsKey(container)) {
        running.put(container, started(container, binding, limits));
      }
    });
  }

  void end(String container) {
    execute(() -> {
      Process process = running.remove(container);
      if (process != null) {
        process.destroy();
      }
    });
  }

  /** Return what containers that ended here really did, as the programs wrote it; nothing if there is nothing to read. */
  String usageReport() {
    Path file = folder.resolve("letter");
    try {
      boolean sound = !command.isEmpty() && Files.isRegularFile(file) && Files.size(file) <= LIMIT_BYTES;
      return sound ? new String(Files.readAllBytes(file), StandardCharsets.US_ASCII) : "";
    } catch (IOException unreadable) {
      return "";
    }
  }

  private Process started(String container, Bindings.Binding binding, Map<String, String> limits) throws IOException {
    List<String> words = new ArrayList<>(command);
    words.addAll(Arrays.asList(container, binding.devices(), String.valueOf(binding.share), folder.toString()));
    File nowhere = new File("/dev/null");
    ProcessBuilder builder = new ProcessBuilder(words).redirectInput(nowhere).redirectErrorStream(true).redirectOutput(nowhere);
    builder.environment().keySet().removeIf(name -> name.startsWith("CUDA_"));
    builder.environment().putAll(limits);
    return builder.start();
  }

  /** What may fail. */
  private interface Work {
    void run() throws IOException;
  }

  private void execute(Work work) {
    if (command.isEmpty()) {
      return;
    }
    thread.execute(() -> {
      try {
        work.run();
      } catch (IOException | RuntimeException failure) {
        Metrics.recordFailure("usage sampler", failure);
      }
    });
  }
}
