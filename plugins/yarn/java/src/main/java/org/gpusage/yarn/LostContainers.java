// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
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
  private final Path proc;
  private final boolean ofOthers;
  private final Consumer<String> ended;

  /**
   * Tell {@code ended} of each container of which nothing runs any more.
   *
   * @param proc the system's processes
   * @param ofOthers whether containers run as users other than this process's
   */
  LostContainers(Path proc, boolean ofOthers, Consumer<String> ended) {
    this.proc = proc;
    this.ofOthers = ofOthers;
    this.ended = ended;
  }

  void await(String container) {
    thread.execute(() -> check(container));
  }

  /** Look again in a second where it runs, or where nobody can tell: two jobs would have one part of a GPU. */
  private void check(String container) {
    try {
      if (!isRunning(container)) {
        ended.accept(container);
        return;
      }
    } catch (Exception | LinkageError unknown) { // the thread keeps to itself whatever is thrown
      Metrics.recordFailure("lost containers", unknown);
    }
    thread.schedule(() -> check(container), 1, TimeUnit.SECONDS);
  }

  /** Return whether the process that started {@code container} runs; its command line names the container, whoever owns it. */
  private boolean isRunning(String container) throws IOException {
    Files.readAllBytes(proc.resolve(ofOthers ? "1" : "self").resolve("cmdline")); // the system may hide others' processes (hidepid)
    try (DirectoryStream<Path> processes = Files.newDirectoryStream(proc, "[0-9]*")) {
      for (Path process : processes) {
        if (commandLine(process).contains("/" + container + "/")) {
          return true;
        }
      }
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
