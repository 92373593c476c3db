package org.gpusage.yarn;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import javax.management.Attribute;
import javax.management.AttributeList;
import javax.management.AttributeNotFoundException;
import javax.management.DynamicMBean;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanInfo;
import javax.management.ObjectName;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Counts what our code did in this daemon, in the MBean {@code org.gpusage:type=Metrics}; each daemon's /jmx shows them.
 *
 * <p>Its further attributes are {@code Version}, the jar's; {@code Classes}, those of ours that started here; {@code Free}, what a node can still
 * give out of each GPU; {@code Running}, who runs on shares; {@code Usage}, what its containers that ended did; and {@code Troubles}, what is wrong now, one line each.
 */
final class Metrics implements DynamicMBean {

  /** What is counted. */
  enum Counter {
    FAILURES("exceptions of ours that were kept from the daemon"),
    PLANS_TAKEN("submissions that carried a plan, or got one"),
    PLANS_REFUSED("submissions whose plan could not be read; they went on as plain ones"),
    DAEMON_REQUESTS("submissions for which gpusaged was asked"),
    DAEMON_RETRIES("applications for which it was asked once more when their master registered"),
    DAEMON_SILENT("how often no answer came in time, or none that could be read"),
    SHARES_SNAPPED("requests whose share was changed to one of the site's steps"),
    ASKS_CHANGED("requests for containers that were given a share"),
    FALLBACKS("applications' requests that were sent again for the next generation"),
    GPUS_BOUND("containers bound to a GPU"),
    GPUS_RECOVERED("containers of an earlier NodeManager whose GPU was read from what they were started with"),
    GPUS_UNKNOWN("containers of an earlier NodeManager whose GPU is not known; nothing new is bound while they run"),
    CONTAINERS_WAITED("containers that waited on their node for room on a GPU"),
    CONTAINERS_REFUSED("containers that got no GPU of their node, and did not run"),
    MPS_STARTED("starts of an MPS control daemon");

    private final String description;

    Counter(String description) {
      this.description = description;
    }
  }

  /** What is said in words. */
  private enum Text {
    VERSION("Version", "the jar's version", Metrics::version),
    CLASSES("Classes", "the classes of ours that started in this daemon", () -> String.join(",", STARTED)),
    FREE("Free", "what can still be given out of each GPU of this node", () -> free.get()),
    RUNNING("Running", "what runs on shares of nodes that have some of a GPU left", () -> running.get()),
    USAGE("Usage", "what containers that ended on this node really did", () -> usage.get()),
    TROUBLES("Troubles", "what is wrong now, a line each", Metrics::troubles);

    private final String title;
    private final String description;
    private final Supplier<String> value;

    Text(String title, String description, Supplier<String> value) {
      this.title = title;
      this.description = description;
      this.value = value;
    }
  }

  private static final Logger LOG = LoggerFactory.getLogger(Metrics.class);
  private static final Metrics OURS = new Metrics();
  private static final Set<String> STARTED = new ConcurrentSkipListSet<>();
  private static final Map<String, Long> LOGGED_NS = new ConcurrentHashMap<>();
  private static final Map<String, String> TROUBLED = new ConcurrentSkipListMap<>();
  private static volatile Supplier<String> free = () -> "";
  private static volatile Supplier<String> running = () -> "";
  private static volatile Supplier<String> usage = () -> "";

  private final Map<Counter, LongAdder> counts = new EnumMap<>(Counter.class);

  static {
    try {
      ManagementFactory.getPlatformMBeanServer().registerMBean(OURS, new ObjectName("org.gpusage:type=Metrics"));
    } catch (Throwable failure) {
      LOG.warn("gpusage: no counters in JMX", failure);
    }
  }

  private Metrics() {
    for (Counter counter : Counter.values()) {
      counts.put(counter, new LongAdder());
    }
  }

  /** Note that {@code ours} works in this daemon. */
  static void started(Object ours) {
    STARTED.add(ours.getClass().getSimpleName());
  }

  static boolean hasStarted(Class<?> ours) {
    return STARTED.contains(ours.getSimpleName());
  }

  /** Show what {@code known} says is free of each GPU. */
  static void showFree(Supplier<String> known) {
    free = known;
  }

  /** Show what {@code known} says that runs beside a new share. */
  static void showRunning(Supplier<String> known) {
    running = known;
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

  static String troubles() {
    return TROUBLED.entrySet().stream().map(each -> each.getKey() + ": " + each.getValue()).collect(Collectors.joining("\n"));
  }

  static String version() {
    String version = Metrics.class.getPackage().getImplementationVersion();
    return version == null ? "unknown" : version;
  }

  static void count(Counter counter) {
    OURS.counts.get(counter).increment();
  }

  static long value(Counter counter) {
    return OURS.counts.get(counter).sum();
  }

  /**
   * Count what went wrong at {@code place}, and log it, though not more than once per minute. Call it where the daemon goes on as if we were
   * not there.
   */
  static void recordFailure(String place, Throwable failure) {
    try {
      count(Counter.FAILURES);
      long now = System.nanoTime();
      Long loggedNs = LOGGED_NS.get(place);
      if (loggedNs == null || now - loggedNs > TimeUnit.MINUTES.toNanos(1)) {
        LOGGED_NS.put(place, now);
        LOG.warn("gpusage: {} failed and was left out; YARN goes on without it", place, failure);
      }
    } catch (Throwable worse) {
      // No exception of ours may reach the daemon, and logging can fail as well.
    }
  }

  @Override
  public Object getAttribute(String name) throws AttributeNotFoundException {
    try {
      for (Text text : Text.values()) {
        if (text.title.equals(name)) {
          return text.value.get();
        }
      }
      return value(Counter.valueOf(name));
    } catch (IllegalArgumentException unknown) {
      throw new AttributeNotFoundException(name);
    }
  }

  @Override
  public AttributeList getAttributes(String[] names) {
    AttributeList list = new AttributeList();
    for (String name : names) {
      try {
        list.add(new Attribute(name, getAttribute(name)));
      } catch (AttributeNotFoundException unknown) {
        LOG.debug("gpusage: no attribute {}", name);
      }
    }
    return list;
  }

  @Override
  public MBeanInfo getMBeanInfo() {
    List<MBeanAttributeInfo> attributes = new ArrayList<>();
    for (Text text : Text.values()) {
      attributes.add(readable(text.title, String.class, text.description));
    }
    for (Counter counter : Counter.values()) {
      attributes.add(readable(counter.name(), long.class, counter.description));
    }
    MBeanAttributeInfo[] array = attributes.toArray(new MBeanAttributeInfo[0]);
    return new MBeanInfo(Metrics.class.getName(), "What gpusage did", array, null, null, null);
  }

  @Override
  public void setAttribute(Attribute attribute) throws AttributeNotFoundException {
    throw new AttributeNotFoundException(attribute.getName() + " can only be read");
  }

  @Override
  public AttributeList setAttributes(AttributeList attributes) {
    return new AttributeList();
  }

  private static MBeanAttributeInfo readable(String name, Class<?> type, String description) {
    return new MBeanAttributeInfo(name, type.getName(), description, true, false, false);
  }

  @Override
  public Object invoke(String action, Object[] arguments, String[] signature) {
    throw new UnsupportedOperationException(action);
  }
}
