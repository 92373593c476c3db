package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import javax.management.Attribute;
import javax.management.AttributeNotFoundException;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.junit.jupiter.api.Test;

class MetricsTest {
  private final MBeanServer server = ManagementFactory.getPlatformMBeanServer();

  @Test
  void everyCounterIsSeenThroughJmx() throws Exception {
    Metrics.count(Metrics.Counter.FALLBACKS);
    Metrics.started(new GpuShareProcessor());
    ObjectName name = new ObjectName("org.gpusage:type=Metrics");
    List<String> attributes = new ArrayList<>();
    for (MBeanAttributeInfo attribute : server.getMBeanInfo(name).getAttributes()) {
      attributes.add(attribute.getName());
    }
    assertEquals(Metrics.Counter.values().length + 6, attributes.size());
    assertEquals(attributes.size(), server.getAttributes(name, attributes.toArray(new String[0])).size());
    assertEquals(Metrics.value(Metrics.Counter.FALLBACKS), server.getAttribute(name, "FALLBACKS"));
    assertTrue(((String) server.getAttribute(name, "Classes")).contains("GpuShareProcessor"));
    assertThrows(AttributeNotFoundException.class, () -> server.getAttribute(name, "NOTHING"));
    assertThrows(AttributeNotFoundException.class, () -> server.setAttribute(name, new Attribute("FALLBACKS", 0L)));
  }

  @Test
  void whatIsWrongIsShownUntilItIsMended() throws Exception {
    ObjectName name = new ObjectName("org.gpusage:type=Metrics");
    Metrics.trouble("journal", "disk\nfull");
    Metrics.trouble("mps", "no such file");
    assertEquals("journal: disk full\nmps: no such file", server.getAttribute(name, "Troubles"));
    Metrics.clearTrouble("journal");
    Metrics.clearTrouble("mps");
    assertEquals("", server.getAttribute(name, "Troubles"));
  }
}
