package org.gpusage.yarn;

import java.io.File;
import java.util.concurrent.TimeUnit;

/** A file whose existence ends all rewriting; we look for it at most once per second. Earlier rewrites stay: GPUs are still bound. */
class KillSwitch {
  private static final long PERIOD_NS = TimeUnit.SECONDS.toNanos(1);

  private final File file;
  private volatile long checkedAtNs;
  private volatile boolean off;

  KillSwitch(File file) {
    this.file = file;
    this.checkedAtNs = nowNs() - PERIOD_NS;
  }

  boolean isOff() {
    long now = nowNs();
    if (now - checkedAtNs >= PERIOD_NS) {
      checkedAtNs = now;
      off = file.exists();
    }
    return off;
  }

  /** Return whether what was submitted at {@code timeMs} is to be left alone: the file was there already. */
  boolean wasOff(long timeMs) {
    return isOff() && file.lastModified() <= timeMs;
  }

  long nowNs() {
    return System.nanoTime();
  }
}
