package org.gpusage.yarn;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * The containers of this node that wait for room on a GPU, first come first, and not for ever.
 *
 * <p>Each waits in a shell of its own for a file, which says what it has got, or that it has got nothing. A thread of ours writes the file; no
 * thread of the NodeManager waits, and no exception leaves. Under our lock nobody asks a container, whose own lock the dispatcher holds when it
 * takes ours.
 */
final class GpuWaitQueue {
  private static final long PERIOD_MS = 250;

  /** After how long any GPU will do, if the one that the ResourceManager meant has no room. */
  private static final long ELSEWHERE_NS = TimeUnit.SECONDS.toNanos(5);

  /** By how much a container's own clock outlasts ours. */
  private static final long MARGIN_S = 15;

  private static final String FOLDER = "gpusage-room";

  /** Tries to bind a container; returns what its shell is to run then, nothing as long as there is no room. */
  interface Binder {
    Optional<String> bind(GpuRequest gpuRequest, boolean anyGpu);
  }

  /** Returns what the shell of a container is to run for which there was no room in time. */
  interface Refuser {
    String refuse(GpuRequest gpuRequest);
  }

  private static final class Waiting {
    private final GpuRequest gpuRequest;
    private final Path file;
    private final long sinceNs = System.nanoTime();

    private Waiting(GpuRequest gpuRequest, Path file) {
      this.gpuRequest = gpuRequest;
      this.file = file;
    }
  }

  private final long limitNs;
  private final Binder binder;
  private final Refuser refuser;
  private final Map<String, Waiting> waiting = new LinkedHashMap<>();
  private ScheduledExecutorService thread;

  GpuWaitQueue(long limitS, Binder binder, Refuser refuser) {
    limitNs = TimeUnit.SECONDS.toNanos(limitS);
    this.binder = binder;
    this.refuser = refuser;
  }

  /** Return what a container runs before its user's command. Nothing in it is special to bash between double quotes. */
  static String command(Path file, long limitS, String refusal) {
    return "timeout " + (limitS + MARGIN_S) + " sh -c 'until test -s " + file + "; do sleep 0.2; done'; "
        + "test -s '" + file + "' || { " + refusal + "; }; . '" + file + "'; ";
  }

  static Path file(String folder, String container) {
    return Paths.get(folder, FOLDER, container);
  }

  /** Write what a container is to run before its user's command, where every user may read it and none may write. */
  private static void write(Path file, String lines) throws IOException {
    Files.createDirectories(file.getParent());
    Files.setPosixFilePermissions(file.getParent(), PosixFilePermissions.fromString("rwxr-xr-x"));
    Path fresh = file.resolveSibling(file.getFileName() + ".new");
    Files.write(fresh, lines.getBytes(StandardCharsets.UTF_8));
    Files.setPosixFilePermissions(fresh, PosixFilePermissions.fromString("rw-r--r--"));
    Files.move(fresh, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
  }

  synchronized boolean hasWaiting(String id) {
    return waiting.containsKey(id);
  }

  synchronized void add(GpuRequest gpuRequest, Path file) {
    waiting.put(gpuRequest.id, new Waiting(gpuRequest, file));
    if (thread == null) {
      thread = Executors.newSingleThreadScheduledExecutor(GpuWaitQueue::thread);
      thread.scheduleWithFixedDelay(this::retry, PERIOD_MS, PERIOD_MS, TimeUnit.MILLISECONDS);
    }
  }

  /** Forget a container that ended, and what is written for it below {@code folders}, maybe by an earlier NodeManager. */
  synchronized void forget(String id, List<String> folders) {
    waiting.remove(id);
    for (String folder : folders) {
      file(folder, id).toFile().delete();
    }
  }

  /** Try to bind those that wait, and refuse those that waited too long. */
  synchronized void retry() {
    for (Iterator<Map.Entry<String, Waiting>> each = waiting.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry<String, Waiting> entry = each.next();
      Waiting next = entry.getValue();
      long waitedNs = System.nanoTime() - next.sinceNs;
      try {
        Optional<String> lines = binder.bind(next.gpuRequest, waitedNs > ELSEWHERE_NS);
        if (lines.isPresent() || waitedNs > limitNs) {
          write(next.file, lines.isPresent() ? lines.get() : refuser.refuse(next.gpuRequest)); // tried again if the disk is full
          each.remove();
        }
      } catch (Throwable failure) {
        Metrics.recordFailure("room on a GPU", failure);
      }
    }
  }

  private static Thread thread(Runnable work) {
    Thread thread = new Thread(work, "gpusage-room");
    thread.setDaemon(true);
    return thread;
  }
}
