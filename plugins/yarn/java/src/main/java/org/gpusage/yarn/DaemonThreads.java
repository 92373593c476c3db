// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.concurrent.ThreadFactory;

/** Makes threads that keep no daemon from ending. */
final class DaemonThreads {
  private DaemonThreads() {}

  static ThreadFactory named(String name) {
    return work -> {
      Thread thread = new Thread(work, name);
      thread.setDaemon(true);
      return thread;
    };
  }
}
