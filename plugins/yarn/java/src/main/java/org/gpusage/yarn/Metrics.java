// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.lang.management.ManagementFactory;
import java.util.EnumMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import javax.management.JMException;
import javax.management.ObjectName;
import org.apache.hadoop.metrics2.MetricsCollector;
import org.apache.hadoop.metrics2.MetricsRecordBuilder;
import org.apache.hadoop.metrics2.MetricsSource;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.metrics2.lib.Interns;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Counts what our code did in this daemon: a source of Hadoop's metrics, whose sinks get each counter, and an MBean with what is said in words. */
final class Metrics implements MetricsSource, GpuShareMXBean {

  /** What is counted. */
  enum Counter {
    FAILURES("exceptions of ours that were kept from the daemon"),
    PLANS_TAKEN("submissions that carried a plan, or got one"),
    PLANS_REFUSED("submissions whose plan could not be read; they went on as plain ones"),
    DAEMON_REQUESTS("submissions for which gpusaged was asked"),
    DAEMON_SILENT("how often no answer came in time, or none that could be read"),
    SHARES_SNAPPED("requests whose share was changed to one of the site's steps"),
    ASKS_CHANGED("requests for containers that were given a share"),
    FALLBACKS("applications' requests that were sent again for the next generation"),
    GPUS_BOUND("containers bound to a GPU"),
    GPUS_UNKNOWN("containers of an earlier NodeManager whose GPU is not known; nothing new is bound while they run"),
    CONTAINERS_REFUSED("containers that got no GPU of their node, and did not run"),
    MPS_STARTED("starts of an MPS control daemon");

    private final String description;

    Counter(String description) {
      this.description = description;
    }
  }

  private static final Logger LOG = LoggerFactory.getLogger(Metrics.class);
  private static final String NAME = "Gpusage";
  private static final Set<String> STARTED = new ConcurrentSkipListSet<>();
  private static final Map<String, Long> LOGGED_NS = new ConcurrentHashMap<>();
  private static final Map<String, String> TROUBLED = new ConcurrentSkipListMap<>();
  private static final Map<Counter, LongAdder> COUNTS = new EnumMap<>(Counter.class);
  private static final Metrics OURS = new Metrics();
  private static volatile Supplier<String> free = () -> "";
  private static volatile Supplier<String> usage = () -> "";

  static {
    for (Counter counter : Counter.values()) {
      COUNTS.put(counter, new LongAdder());
    }
    try {
      registerSource();
      ManagementFactory.getPlatformMBeanServer().registerMBean(OURS, new ObjectName("org.gpusage:type=Metrics"));
    } catch (JMException | RuntimeException failure) {
      LOG.warn("gpusage: its metrics are not shown", failure);
    }
  }

  private Metrics() {}

  /** Be a source of Hadoop's metrics, which forget their sources when a ResourceManager steps down. */
  private static void registerSource() {
    if (DefaultMetricsSystem.instance().getSource(NAME) == null) {
      DefaultMetricsSystem.instance().register(NAME, "What gpusage did", OURS);
    }
  }

  /** Note that {@code ours} works in this daemon. */
  static void started(Object ours) {
    registerSource();
    STARTED.add(ours.getClass().getSimpleName());
  }

  /** Show what {@code known} says is free of each GPU. */
  static void showFree(Supplier<String> known) {
    free = known;
  }

  /** Show what {@code known} says that containers did. */
  static void showUsage(Supplier<String> known) {
    usage = known;
  }

  /** Show what is wrong at {@code place} until it is mended. */
  static void trouble(String place, String sentence) {
    TROUBLED.put(place, sentence.replaceAll("[^\\x20-\\x7e]+", " "));
  }

  static void clearTrouble(String place) {
    TROUBLED.remove(place);
  }

  static String free() {
    return free.get();
  }

  static String troubles() {
    return TROUBLED.entrySet().stream().map(each -> each.getKey() + ": " + each.getValue()).collect(Collectors.joining("\n"));
  }

  static void count(Counter counter) {
    COUNTS.get(counter).increment();
  }

  static long value(Counter counter) {
    return COUNTS.get(counter).sum();
  }

  /**
   * Count what went wrong at {@code place}, and log it, though not more than once per minute. Call it where the daemon goes on as if we were
   * not there.
   */
  static void recordFailure(String place, Throwable failure) {
    count(Counter.FAILURES);
    long now = System.nanoTime();
    Long loggedNs = LOGGED_NS.get(place);
    if (loggedNs == null || now - loggedNs > TimeUnit.MINUTES.toNanos(1)) {
      LOGGED_NS.put(place, now);
      LOG.warn("gpusage: {} failed and was left out; YARN goes on without it", place, failure);
    }
  }

  @Override
  public void getMetrics(MetricsCollector collector, boolean all) {
    MetricsRecordBuilder record = collector.addRecord(NAME).setContext("yarn");
    COUNTS.forEach((counter, count) -> record.addCounter(Interns.info(counter.name(), counter.description), count.sum()));
  }

  @Override
  public String getVersion() {
    String version = Metrics.class.getPackage().getImplementationVersion();
    return version == null ? "unknown" : version;
  }

  @Override
  public String getClasses() {
    return String.join(",", STARTED);
  }

  @Override
  public String getFree() {
    return free.get();
  }

  @Override
  public String getUsage() {
    return usage.get();
  }

  @Override
  public String getTroubles() {
    return troubles();
  }

  @Override
  public long getFailures() {
    return value(Counter.FAILURES);
  }

  @Override
  public Map<String, Long> getCounts() {
    Map<String, Long> counts = new TreeMap<>();
    COUNTS.forEach((counter, count) -> counts.put(counter.name(), count.sum()));
    return counts;
  }
}
