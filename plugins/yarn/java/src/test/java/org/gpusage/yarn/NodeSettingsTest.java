// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Arrays;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;

class NodeSettingsTest {
  private static final String LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

  @Test
  void gpusAreCountedByTheSharesOffered() {
    NodeSettings node = node("yarn.nodemanager.resource-type.gpusage.io/share", "250");
    assertEquals(Arrays.asList("0", "1"), node.gpus);
    assertEquals(Arrays.asList("0"), node("yarn.nodemanager.resource-type.gpusage.io/share", "50").gpus);
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
  void theMemoryCapIsTheSharesPartOfTheGpusMemory() {
    NodeSettings sized = node(Settings.NODE_MEMORY_MIB, "16000");
    assertEquals("0=6201M", variables(sized, "0", 40, 0).get(LIMIT));
    assertFalse(variables(sized, "0", 100, 0).containsKey(LIMIT), "a whole GPU has no cap");
    assertFalse(variables(node("none", ""), "0", 40, 0).containsKey(LIMIT));
  }

  @Test
  void theMemoryOfEachGpuIsWhatTheDriverSays() {
    Map<String, Long> memory =
        GpuMemory.read(Arrays.asList("0, GPU-1a, 81559", "1, GPU-2b, 16384", "2, GPU-3c, [Unknown Error]", "no devices"));
    assertEquals(81559, memory.get("0"));
    assertEquals(memory.get("0"), memory.get("GPU-1a"));
    assertEquals(16384, memory.get("GPU-2b"));
    assertEquals(4, memory.size());
  }

  @Test
  void severalWholeGpusAreNamedWithoutMps() {
    Map<String, String> variables = variables(node(Settings.NODE_MEMORY_MIB, "16000"), "0,1", 200, 0);
    assertEquals("0,1", variables.get("CUDA_VISIBLE_DEVICES"));
    assertEquals(Arrays.asList("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "GPUSAGE_SHARE"), new java.util.ArrayList<>(variables.keySet()));
  }

  @Test
  void theVariablesNameOneGpuAndItsDaemon() {
    Map<String, String> variables = variables(node("none", ""), "GPU-1", 40, 0);
    assertEquals("GPU-1", variables.get("CUDA_VISIBLE_DEVICES"));
    assertEquals("40", variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    assertEquals("40", variables.get("GPUSAGE_SHARE"));
    assertEquals("/run/gpusage-mps/GPU-1/pipe", variables.get("CUDA_MPS_PIPE_DIRECTORY"));
  }

  @Test
  void thePlanMayLetAContainerUseMoreThreadsThanItsShareAndNeverFewer() {
    int[][] cases = {{0, 40}, {30, 40}, {80, 80}, {900, 100}};
    for (int[] each : cases) {
      Map<String, String> variables = variables(node("none", ""), "0", 40, each[0]);
      assertEquals(String.valueOf(each[1]), variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
      assertEquals("40", variables.get("GPUSAGE_SHARE"));
    }
  }

  private static Map<String, String> variables(NodeSettings node, String gpu, long share, long threads) {
    return GpuShareNodeListener.variables(node, new Bindings.Binding(Arrays.asList(gpu.split(",")), share), threads);
  }

  private static NodeSettings node(String key, String value) {
    Configuration conf = new Configuration(false);
    conf.set(key, value);
    return new NodeSettings(conf);
  }
}
