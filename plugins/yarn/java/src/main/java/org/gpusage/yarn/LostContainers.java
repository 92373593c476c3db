// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * Waits for the processes of containers whose end the NodeManager missed: one that was killed at a start does not find again what it started.
 *
 * <p>A thread of our own looks for them, because the NodeManager's dispatcher must not wait for files.
 */
final class LostContainers {
  private final ScheduledExecutorService thread = Executors.newSingleThreadScheduledExecutor(DaemonThreads.named("gpusage-lost"));
  private final Consumer<String> ended;

  /** Tell {@code ended} of each container of which nothing runs any more. */
  LostContainers(Consumer<String> ended) {
    this.ended = ended;
  }

  void await(String container) {
    thread.execute(() -> check(container));
  }

  private void check(String container) {
    if (isRunning(container)) {
      thread.schedule(() -> check(container), 1, TimeUnit.SECONDS);
    } else {
      ended.accept(container);
    }
  }

  /** Return whether the process that started {@code container} runs; its command line names the container, whoever owns it. */
  private static boolean isRunning(String container) {
    try (DirectoryStream<Path> processes = Files.newDirectoryStream(Paths.get("/proc"), "[0-9]*")) {
      for (Path process : processes) {
        if (commandLine(process).contains("/" + container + "/")) {
          return true;
        }
      }
      return false;
    } catch (IOException noProc) {
      return false;
    }
  }

  private static String commandLine(Path process) {
    try {
      return new String(Files.readAllBytes(process.resolve("cmdline")), StandardCharsets.ISO_8859_1);
    } catch (IOException ended) {
      return "";
    }
  }
}
