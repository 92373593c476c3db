// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import java.io.File;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.file.Path;
import java.util.Random;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.util.resource.DominantResourceCalculator;
import org.apache.hadoop.yarn.util.resource.ResourceCalculator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class GpuShareResourceCalculatorTest {
  private static final String SHARE = Settings.DEFAULT_SHARE_RESOURCE;
  private static final Resource LEAST = vector(32, 1, 0, 0);
  private static final Resource MOST = vector(8192, 32, 8, 100);

  private final ResourceCalculator parent = new DominantResourceCalculator();

  @TempDir Path folder;

  @Test
  void everyMethodAnswersAsItsParentForRandomVectorsWithoutAShare() throws Exception {
    GpuShareResourceCalculator ours = calculator("gpusage.none", "");
    Random random = new Random(5);
    int requested = 0;
    for (Method method : ResourceCalculator.class.getMethods()) {
      if (Modifier.isStatic(method.getModifiers()) || method.getDeclaringClass() == Object.class) {
        continue;
      }
      for (int round = 0; round < 300; round++) {
        boolean shares = !method.getName().equals("normalize");
        Object[] arguments = arguments(method, random, shares);
        assertEquals(answer(parent, method, arguments), answer(ours, method, arguments), method.toString());
        requested++;
      }
    }
    assertEquals(0, requested % 300);
    assertEquals(true, requested >= 20 * 300);
  }

  @Test
  void normalizeOfRandomVectorsDiffersFromItsParentInTheShareOnly() {
    GpuShareResourceCalculator ours = calculator(Settings.SHARE_STEPS, "25,50,100");
    Random random = new Random(7);
    for (int round = 0; round < 2000; round++) {
      Resource ask = vector(random.nextInt(9000), random.nextInt(40), random.nextInt(10), random.nextInt(130));
      Resource stock = parent.normalize(ask, LEAST, MOST, LEAST);
      Resource snapped = ours.normalize(ask, LEAST, MOST, LEAST);
      long share = stock.getResourceValue(SHARE);
      long expected = share == 0 ? 0 : share <= 25 ? 25 : share <= 50 ? 50 : 100;
      assertEquals(expected, snapped.getResourceValue(SHARE));
      snapped.setResourceValue(SHARE, share);
      assertEquals(stock, snapped);
    }
  }

  @Test
  void aShareIsNeverMoreThanTheMaximum() {
    GpuShareResourceCalculator ours = calculator(Settings.SHARE_STEPS, "50,100");
    Resource most = vector(8192, 32, 8, 80);
    assertEquals(80, ours.normalize(vector(64, 1, 0, 60), LEAST, most, LEAST).getResourceValue(SHARE));
  }

  @Test
  void anExceptionInsideIsItsParentsAnswer() {
    GpuShareResourceCalculator ours = new Faults.Calculator();
    ours.setConf(new Configuration(false));
    long before = Metrics.value(Metrics.Counter.FAILURES);
    Resource ask = vector(100, 1, 0, 33);
    assertEquals(parent.normalize(ask, LEAST, MOST, LEAST), ours.normalize(ask, LEAST, MOST, LEAST));
    assertEquals(before + 1, Metrics.value(Metrics.Counter.FAILURES));
  }

  @Test
  void stepsThatCannotBeReadAreItsParentsAnswer() {
    GpuShareResourceCalculator ours = calculator(Settings.SHARE_STEPS, "quarter");
    Resource ask = vector(100, 1, 0, 33);
    assertEquals(33, ours.normalize(ask, LEAST, MOST, LEAST).getResourceValue(SHARE));
  }

  @Test
  void anUnknownResourceTypeIsItsParentsAnswer() {
    GpuShareResourceCalculator ours = calculator(Settings.SHARE_RESOURCE, "elsewhere.io/share");
    Resource stock = vector(100, 1, 0, 33);
    assertSame(stock, ours.snapped(stock, MOST));
  }

  @Test
  void theSwitchFileTurnsSnappingOff() throws Exception {
    File file = folder.resolve("off").toFile();
    assertEquals(true, file.createNewFile());
    GpuShareResourceCalculator ours = calculator(Settings.SWITCH_FILE, file.getPath());
    assertEquals(33, ours.normalize(vector(100, 1, 0, 33), LEAST, MOST, LEAST).getResourceValue(SHARE));
  }

  private static GpuShareResourceCalculator calculator(String key, String value) {
    Configuration conf = new Configuration(false);
    conf.set(key, value);
    GpuShareResourceCalculator calculator = new GpuShareResourceCalculator();
    calculator.setConf(conf);
    return calculator;
  }

  static Resource vector(long memory, int vcores, long gpus, long share) {
    Resource vector = Resource.newInstance(memory, vcores);
    vector.setResourceValue(Settings.GPU_RESOURCE, gpus);
    vector.setResourceValue(SHARE, share);
    return vector;
  }

  private static Object[] arguments(Method method, Random random, boolean shares) {
    Class<?>[] types = method.getParameterTypes();
    Object[] arguments = new Object[types.length];
    for (int i = 0; i < types.length; i++) {
      if (types[i] == Resource.class) {
        int share = shares ? random.nextInt(101) : 0;
        arguments[i] = vector(1 + random.nextInt(9000), 1 + random.nextInt(40), random.nextInt(10), share);
      } else if (types[i] == double[].class) {
        arguments[i] = new double[] {random.nextDouble(), random.nextDouble(), random.nextDouble(), random.nextDouble()};
      } else if (types[i] == double.class) {
        arguments[i] = random.nextDouble() * 4;
      } else if (types[i] == float.class) {
        arguments[i] = 1 + random.nextFloat() * 4;
      } else if (types[i] == int.class) {
        arguments[i] = 1 + random.nextInt(5);
      } else if (types[i] == boolean.class) {
        arguments[i] = random.nextBoolean();
      } else {
        arguments[i] = random.nextInt(1000) + 1L;
      }
    }
    return arguments;
  }

  private static Object answer(ResourceCalculator calculator, Method method, Object[] arguments) throws Exception {
    try {
      return method.invoke(calculator, arguments);
    } catch (InvocationTargetException thrown) {
      return thrown.getCause().getClass() + ": " + thrown.getCause().getMessage();
    }
  }
}
