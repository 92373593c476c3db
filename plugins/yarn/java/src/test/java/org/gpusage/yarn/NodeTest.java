package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Arrays;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;

class NodeTest {
  private static final String LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

  @Test
  void gpusAreCountedByTheSharesOffered() {
    Node node = node("yarn.nodemanager.resource-type.gpusage.io/share", "250");
    assertEquals(Arrays.asList("0", "1"), node.gpus);
    assertNull(node.journal());
  }

  @Test
  void gpusCanBeNamed() {
    assertEquals(Arrays.asList("GPU-8a9b", "3"), node(Settings.NODE_GPUS, "GPU-8a9b, 3").gpus);
    assertThrows(IllegalArgumentException.class, () -> node(Settings.NODE_GPUS, "0;rm"));
  }

  @Test
  void aGpuIsNamedOnce() {
    for (String twice : new String[] {"0,1,0", "GPU-8a9b,GPU-8a9b-77c1", "01,1", "-1"}) {
      assertThrows(IllegalArgumentException.class, () -> node(Settings.NODE_GPUS, twice), twice);
    }
    assertEquals(2, node(Settings.NODE_GPUS, "1,10").gpus.size());
  }

  @Test
  void theMemoryCapIsThePlansButNeverMoreThanTheShareOfTheGpu() {
    Node sized = node(Settings.NODE_MEMORY_MIB, "16000");
    assertEquals("0=3000M", cap(sized, 40, 3000));
    assertEquals("0=6400M", cap(sized, 40, 9000));
    assertEquals("0=6400M", cap(sized, 40, 0));
    Node unsized = node("none", "");
    assertEquals("0=3000M", cap(unsized, 40, 3000));
    assertFalse(GpuShareNodeListener.variables(unsized, "0", 40, 0, 0).containsKey(LIMIT));
  }

  @Test
  void theVariablesNameOneGpuAndItsDaemon() {
    Map<String, String> variables = GpuShareNodeListener.variables(node("none", ""), "GPU-1", 40, 0, 0);
    assertEquals("GPU-1", variables.get("CUDA_VISIBLE_DEVICES"));
    assertEquals("40", variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    assertEquals("40", variables.get("GPUSAGE_SHARE"));
    assertEquals("/run/gpusage-mps/GPU-1/pipe", variables.get("CUDA_MPS_PIPE_DIRECTORY"));
  }

  @Test
  void thePlanMayLetAContainerUseMoreThreadsThanItsShareAndNeverFewer() {
    int[][] cases = {{0, 40}, {30, 40}, {80, 80}, {900, 100}};
    for (int[] each : cases) {
      Map<String, String> variables = GpuShareNodeListener.variables(node("none", ""), "0", 40, each[0], 0);
      assertEquals(String.valueOf(each[1]), variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
      assertEquals("40", variables.get("GPUSAGE_SHARE"));
    }
  }

  private static String cap(Node node, long share, long capMib) {
    return GpuShareNodeListener.variables(node, "0", share, 0, capMib).get(LIMIT);
  }

  private static Node node(String key, String value) {
    Configuration conf = new Configuration(false);
    conf.set(key, value);
    return new Node(conf);
  }
}
