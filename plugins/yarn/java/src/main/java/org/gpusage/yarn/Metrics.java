package org.gpusage.yarn;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
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
 * What this daemon did for us, as counters of the MBean {@code org.gpusage:type=Metrics}; each daemon's /jmx shows them.
 *
 * <p>Its further attributes are {@code Version}, the jar's, and {@code Classes}, those of ours that started here.
 */
final class Metrics implements DynamicMBean {

  /** What is counted. */
  enum Counter {
    FAILURES("exceptions of ours that were kept from the daemon"),
    PLANS_TAKEN("submissions that carried a plan, or got one"),
    PLANS_REFUSED("submissions whose plan could not be read; they went on as plain ones"),
    DAEMON_ASKED("submissions for which gpusaged was asked"),
    DAEMON_SILENT("of these, how often no answer came in time, or none that could be read"),
    SHARES_SNAPPED("requests whose share was changed to one of the site's steps"),
    ASKS_CHANGED("requests for containers that were given a share"),
    FALLBACKS("applications' requests that were sent again for the next generation"),
    GPUS_BOUND("containers bound to a GPU"),
    CONTAINERS_REFUSED("containers that fitted no GPU of their node"),
    MPS_STARTED("starts of an MPS control daemon");

    private final String description;

    Counter(String description) {
      this.description = description;
    }
  }

  private static final Logger LOG = LoggerFactory.getLogger(Metrics.class);
  private static final String VERSION = "Version";
  private static final String CLASSES = "Classes";
  private static final Metrics OURS = new Metrics();
  private static final Set<String> STARTED = new ConcurrentSkipListSet<>();
  private static final Map<String, Long> LOGGED_NS = new ConcurrentHashMap<>();

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
   * Count what went wrong at {@code place}, and log it, though not more than once a minute; to be called where the daemon goes on as if we were
   * not there.
   */
  static void contain(String place, Throwable failure) {
    try {
      count(Counter.FAILURES);
      long now = System.nanoTime();
      Long loggedNs = LOGGED_NS.get(place);
      if (loggedNs == null || now - loggedNs > TimeUnit.MINUTES.toNanos(1)) {
        LOGGED_NS.put(place, now);
        LOG.warn("gpusage: {} failed and was left out; YARN goes on without it", place, failure);
      }
    } catch (Throwable worse) {
      // Nothing of ours may reach the daemon, and logging can fail as well.
    }
  }

  @Override
  public Object getAttribute(String name) throws AttributeNotFoundException {
    try {
      return name.equals(VERSION) ? version() : name.equals(CLASSES) ? String.join(",", STARTED) : value(Counter.valueOf(name));
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
    attributes.add(readable(VERSION, String.class, "the jar's version"));
    attributes.add(readable(CLASSES, String.class, "the classes of ours that started in this daemon"));
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
