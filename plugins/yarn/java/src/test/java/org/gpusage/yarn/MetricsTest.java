// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import javax.management.openmbean.TabularData;
import org.apache.hadoop.metrics2.impl.MetricsCollectorImpl;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.junit.jupiter.api.Test;

class MetricsTest {
  private final MBeanServer server = ManagementFactory.getPlatformMBeanServer();

  @Test
  void everyCounterIsSeenThroughJmxAndByTheSinksOfHadoopsMetrics() throws Exception {
    Metrics.count(Metrics.Counter.FALLBACKS);
    Metrics.started(new GpuShareProcessor());
    ObjectName name = new ObjectName("org.gpusage:type=Metrics");
    TabularData counts = (TabularData) server.getAttribute(name, "Counts");
    assertEquals(Metrics.Counter.values().length, counts.size());
    assertEquals(Metrics.value(Metrics.Counter.FALLBACKS), counts.get(new Object[] {"FALLBACKS"}).get("value"));
    assertEquals(Metrics.value(Metrics.Counter.FAILURES), server.getAttribute(name, "Failures"));
    assertTrue(((String) server.getAttribute(name, "Classes")).contains("GpuShareProcessor"));

    MetricsCollectorImpl seen = new MetricsCollectorImpl();
    DefaultMetricsSystem.instance().getSource("Gpusage").getMetrics(seen, true);
    List<String> names = new ArrayList<>();
    seen.getRecords().get(0).metrics().forEach(metric -> names.add(metric.name()));
    assertEquals(Metrics.Counter.values().length, names.size());
    assertTrue(names.contains("FALLBACKS"));
  }

  @Test
  void aResourceManagerThatIsActiveAgainSendsTheCountersAgain() {
    DefaultMetricsSystem.initialize("ResourceManager");
    Metrics.started(new GpuShareProcessor());
    DefaultMetricsSystem.shutdown(); // as it steps down
    DefaultMetricsSystem.initialize("ResourceManager");
    try {
      Metrics.started(new GpuShareProcessor());
      assertNotNull(DefaultMetricsSystem.instance().getSource("Gpusage"));
    } finally {
      DefaultMetricsSystem.shutdown();
    }
  }

  @Test
  void whatIsWrongIsShownUntilItIsMended() throws Exception {
    ObjectName name = new ObjectName("org.gpusage:type=Metrics");
    Metrics.trouble("listener", "disk\nfull");
    Metrics.trouble("mps", "no such file");
    assertEquals("listener: disk full\nmps: no such file", server.getAttribute(name, "Troubles"));
    Metrics.clearTrouble("listener");
    Metrics.clearTrouble("mps");
    assertEquals("", server.getAttribute(name, "Troubles"));
  }
}
