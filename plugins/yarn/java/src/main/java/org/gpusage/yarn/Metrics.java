package org.gpusage.yarn;

import java.lang.management.ManagementFactory;
import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
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

/** What this daemon did for us, as counters of the MBean {@code org.gpusage:type=Metrics}; each daemon's /jmx shows them. */
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
  private static final Metrics OURS = new Metrics();
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
      return value(Counter.valueOf(name));
    } catch (IllegalArgumentException unknown) {
      throw new AttributeNotFoundException(name);
    }
  }

  @Override
  public AttributeList getAttributes(String[] names) {
    AttributeList list = new AttributeList();
    for (Counter counter : Counter.values()) {
      for (String name : names) {
        if (counter.name().equals(name)) {
          list.add(new Attribute(name, value(counter)));
        }
      }
    }
    return list;
  }

  @Override
  public MBeanInfo getMBeanInfo() {
    Counter[] counters = Counter.values();
    MBeanAttributeInfo[] attributes = new MBeanAttributeInfo[counters.length];
    for (Counter counter : counters) {
      attributes[counter.ordinal()] =
          new MBeanAttributeInfo(counter.name(), "long", counter.description, true, false, false);
    }
    return new MBeanInfo(Metrics.class.getName(), "Counters of gpusage", attributes, null, null, null);
  }

  @Override
  public void setAttribute(Attribute attribute) throws AttributeNotFoundException {
    throw new AttributeNotFoundException(attribute.getName() + " can only be read");
  }

  @Override
  public AttributeList setAttributes(AttributeList attributes) {
    return new AttributeList();
  }

  @Override
  public Object invoke(String action, Object[] arguments, String[] signature) {
    throw new UnsupportedOperationException(action);
  }
}
