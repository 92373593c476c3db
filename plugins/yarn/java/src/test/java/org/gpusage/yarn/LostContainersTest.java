// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class LostContainersTest {
  @TempDir Path folder;
  private final BlockingQueue<String> ended = new LinkedBlockingQueue<>();
  private final long failures = Metrics.value(Metrics.Counter.FAILURES);

  @Test
  void whereProcessesCannotBeReadAContainerCountsAsRunning() throws Exception {
    Path proc = folder.resolve("proc");
    LostContainers lost = new LostContainers(proc, false, ended::add);
    awaitAndSeeAFailure(lost);
    Files.createDirectories(proc.resolve("self"));
    Files.createFile(proc.resolve("self").resolve("cmdline"));
    assertEquals("a", ended.poll(5, TimeUnit.MINUTES));
  }

  @Test
  void soItDoesWhereTheSystemHidesOtherUsersProcesses() throws Exception {
    LostContainers lost = new LostContainers(folder, true, ended::add);
    awaitAndSeeAFailure(lost);
    Files.createDirectory(folder.resolve("1"));
    Files.createFile(folder.resolve("1").resolve("cmdline"));
    assertEquals("a", ended.poll(5, TimeUnit.MINUTES));
  }

  @Test
  void whatFailsAtTheEndIsTriedAgain() throws Exception {
    int[] calls = new int[1];
    Files.createDirectory(folder.resolve("self"));
    Files.createFile(folder.resolve("self").resolve("cmdline"));
    LostContainers lost =
        new LostContainers(
            folder,
            false,
            container -> {
              if (calls[0]++ == 0) {
                throw new IllegalStateException("once");
              }
              ended.add(container);
            });
    lost.await("a");
    assertEquals("a", ended.poll(5, TimeUnit.MINUTES));
  }

  private void awaitAndSeeAFailure(LostContainers lost) throws Exception {
    lost.await("a");
    while (Metrics.value(Metrics.Counter.FAILURES) == failures) {
      Thread.sleep(5);
    }
    assertTrue(ended.isEmpty());
  }
}
