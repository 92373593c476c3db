package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Random;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator;
import org.apache.hadoop.yarn.util.resource.ResourceCalculator;
import org.junit.jupiter.api.Test;

class GpuShareMemoryResourceCalculatorTest {
  private static final Resource LEAST = vector(32, 0);
  private static final Resource MOST = vector(8192, 100);

  private final ResourceCalculator stock = new DefaultResourceCalculator();
  private final ResourceCalculator ours = calculator();

  @Test
  void whatHasNoShareIsJudgedAsByTheDefaultCalculatorWhateverItsVcores() {
    Random random = new Random(11);
    for (int round = 0; round < 5000; round++) {
      Resource cluster = vector(1 + random.nextInt(90000), 400);
      Resource left = vector(1 + random.nextInt(20), 0);
      Resource right = vector(1 + random.nextInt(20), 0);
      left.setVirtualCores(random.nextInt(50) - 10);
      right.setVirtualCores(random.nextInt(50) - 10);
      for (boolean single : new boolean[] {true, false}) {
        assertEquals(stock.compare(cluster, left, right, single), ours.compare(cluster, left, right, single));
      }
      assertEquals(stock.fitsIn(left, right), ours.fitsIn(left, right));
      assertEquals(stock.computeAvailableContainers(left, right), ours.computeAvailableContainers(left, right));
      assertEquals(stock.divide(cluster, left, right), ours.divide(cluster, left, right), 1e-5);
      assertEquals(stock.ratio(left, right), ours.ratio(left, right), 1e-5);
      assertEquals(stock.normalize(left, LEAST, MOST, LEAST), ours.normalize(left, LEAST, MOST, LEAST));
      assertEquals(stock.isAnyMajorResourceAboveZero(left), ours.isAnyMajorResourceAboveZero(left));
    }
  }

  @Test
  void sharesCountAsWithOurOtherCalculator() {
    assertEquals(false, ours.fitsIn(vector(1, 60), vector(100, 50)));
    assertEquals(2, ours.computeAvailableContainers(vector(9000, 100), vector(1, 50)));
    assertEquals(35, ours.normalize(vector(1, 33 + 1), LEAST, MOST, LEAST).getResourceValue(Settings.DEFAULT_SHARE_RESOURCE));
    assertEquals(1, ours.compare(vector(1000, 100), vector(1, 50), vector(100, 0), true));
  }

  private static ResourceCalculator calculator() {
    GpuShareMemoryResourceCalculator calculator = new GpuShareMemoryResourceCalculator();
    calculator.setConf(new Configuration(false));
    return calculator;
  }

  private static Resource vector(long memory, long share) {
    return GpuShareResourceCalculatorTest.vector(memory, 1, 0, share);
  }
}
