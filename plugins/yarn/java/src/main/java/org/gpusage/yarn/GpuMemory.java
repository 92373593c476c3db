// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * How much memory each GPU of this node has, as {@code nvidia-smi} says, and what part of it is a share's.
 *
 * <p>A thread of our own asks, and asks again where no answer comes, because a driver may hang or still be starting.
 */
final class GpuMemory {
  /** What MPS's server takes of a GPU, and the driver of a thousandth of it: as gpusage's devices/share_memory.py has it. */
  private static final long RESERVE_MIB = 256;

  private static final long RESERVE_PER_THOUSAND = 15;

  private static final Logger LOG = LoggerFactory.getLogger(GpuMemory.class);
  private static final String[] COMMAND = {
    "nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"
  };
  private static final long PATIENCE_S = 5;
  private static final long ANSWER_LIMIT_S = 30;
  private static final long AGAIN_S = 60;

  private volatile Map<String, Long> mibByName = Collections.emptyMap();

  /** Begin to ask, and wait a little for the answer: containers that start before it have no cap. */
  static GpuMemory ofThisNode() {
    GpuMemory memory = new GpuMemory();
    CountDownLatch firstAnswer = new CountDownLatch(1);
    DaemonThreads.named("gpusage-gpu-memory").newThread(() -> memory.queryWithRetries(firstAnswer)).start();
    try {
      firstAnswer.await(PATIENCE_S, TimeUnit.SECONDS);
    } catch (InterruptedException ending) {
      Thread.currentThread().interrupt();
    }
    return memory;
  }

  /** Return the part of a GPU with {@code mib} of memory that a {@code share} of it may use, in MiB; 0 if that is too little to say. */
  static long part(long mib, long share) {
    return Math.max(0, mib - RESERVE_MIB - mib * RESERVE_PER_THOUSAND / 1000) * share / Settings.WHOLE_GPU;
  }

  /** Return the memory of {@code gpu} in MiB; 0 if it is not known. */
  long mib(String gpu) {
    for (Map.Entry<String, Long> each : mibByName.entrySet()) {
      if (each.getKey().equals(gpu) || each.getKey().startsWith(gpu) && gpu.startsWith("GPU-")) {
        return each.getValue();
      }
    }
    return 0;
  }

  /** Return each GPU's memory in MiB, by its index and by its UUID, as {@code lines} of nvidia-smi say it. */
  static Map<String, Long> read(Iterable<String> lines) {
    Map<String, Long> memory = new HashMap<>();
    for (String line : lines) {
      String[] words = line.trim().split("\\s*,\\s*");
      if (words.length >= 3 && words[2].matches("[0-9]{1,9}")) {
        memory.put(words[0], Long.valueOf(words[2]));
        memory.put(words[1], Long.valueOf(words[2]));
      }
    }
    return memory;
  }

  private void queryWithRetries(CountDownLatch firstAnswer) {
    try {
      for (mibByName = query(); mibByName.isEmpty(); mibByName = query()) {
        firstAnswer.countDown();
        TimeUnit.SECONDS.sleep(AGAIN_S);
      }
      LOG.info("gpusage: memory of GPUs in MiB: {}", mibByName);
    } catch (InterruptedException ending) {
      Thread.currentThread().interrupt();
    } catch (RuntimeException failure) {
      Metrics.recordFailure("memory of GPUs", failure);
    } finally {
      firstAnswer.countDown();
    }
  }

  private static Map<String, Long> query() throws InterruptedException {
    Process process;
    try {
      process = new ProcessBuilder(COMMAND).redirectInput(new File("/dev/null")).redirectError(new File("/dev/null")).start();
    } catch (IOException noDriver) {
      return Collections.emptyMap();
    }
    try {
      if (!process.waitFor(ANSWER_LIMIT_S, TimeUnit.SECONDS) || process.exitValue() != 0) {
        return Collections.emptyMap();
      }
      BufferedReader answer = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.US_ASCII));
      return read(answer.lines()::iterator);
    } finally {
      process.destroyForcibly();
    }
  }
}
