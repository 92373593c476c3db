// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * A file whose existence ends all rewriting. Earlier rewrites stay: GPUs are still bound.
 *
 * <p>A thread looks for it once per second, one for each file: nobody waits for a disk under a lock of the scheduler.
 */
final class KillSwitch {
  private static final ConcurrentMap<File, KillSwitch> WATCHED = new ConcurrentHashMap<>();

  private final File file;
  private volatile long sinceMs;

  private KillSwitch(File file) {
    this.file = file;
    checkFile();
    Executors.newSingleThreadScheduledExecutor(DaemonThreads.named("gpusage-switch")).scheduleWithFixedDelay(this::checkFile, 1, 1, TimeUnit.SECONDS);
  }

  /** Return the switch that is thrown by {@code file}. */
  static KillSwitch of(File file) {
    return WATCHED.computeIfAbsent(file, KillSwitch::new);
  }

  boolean isOff() {
    return sinceMs < Long.MAX_VALUE;
  }

  /** Return whether what was submitted at {@code timeMs} is to be left alone: the file was there already. */
  boolean wasOff(long timeMs) {
    return isOff() && sinceMs <= timeMs;
  }

  private void checkFile() {
    long modifiedMs = file.lastModified(); // 0 where there is none; one look, for the file may go at any moment
    sinceMs = modifiedMs == 0 ? Long.MAX_VALUE : modifiedMs;
  }
}
