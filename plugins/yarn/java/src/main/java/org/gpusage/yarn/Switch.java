package org.gpusage.yarn;

import java.io.File;
import java.util.concurrent.TimeUnit;

/** A file whose existence turns everything of ours off; looked for at most once a second. */
class Switch {
  private static final long PERIOD_NS = TimeUnit.SECONDS.toNanos(1);

  private final File file;
  private volatile long lookedAtNs;
  private volatile boolean off;

  Switch(File file) {
    this.file = file;
    this.lookedAtNs = nowNs() - PERIOD_NS;
  }

  boolean isOff() {
    long now = nowNs();
    if (now - lookedAtNs >= PERIOD_NS) {
      lookedAtNs = now;
      off = file.exists();
    }
    return off;
  }

  long nowNs() {
    return System.nanoTime();
  }
}
