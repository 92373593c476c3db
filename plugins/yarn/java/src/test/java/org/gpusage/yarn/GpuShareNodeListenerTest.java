// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerState;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ResourceMappings;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.resourceplugin.ResourcePlugin;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.resourceplugin.ResourcePluginManager;
import org.apache.hadoop.yarn.server.nodemanager.recovery.NMNullStateStoreService;
import org.apache.hadoop.yarn.server.nodemanager.recovery.NMStateStoreService;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class GpuShareNodeListenerTest {
  @TempDir Path folder;
  private final Configuration conf = new Configuration(false);
  private final ConcurrentHashMap<ContainerId, Container> containers = new ConcurrentHashMap<>();
  private int count;
  private Set<String> tags;
  private String plugins = "";
  private NMStateStoreService store = new MemoryStateStore();

  @BeforeEach
  void offerTwoGpus() {
    conf.set(Settings.NODE_GPUS, "0,1");
  }

  @Test
  void aShareIsBoundAndSaidOverWhateverItsUserPutThere() {
    Container container = container(60, false, ExecutionType.GUARANTEED);
    environment(container).put("CUDA_VISIBLE_DEVICES", "7");
    listener().containerInitialized(container);
    assertEquals("0", environment(container).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void theGpuIsTheOneThatTheResourceManagerMeantAndNoVariableRaisesTheThreads() {
    tags = new HashSet<>(Arrays.asList("gpusage-gpu-1", "gpusage-threads-80"));
    Container container = container(25, false, ExecutionType.GUARANTEED);
    environment(container).put("GPUSAGE_THREAD_PERCENT", "100");
    listener().containerInitialized(container);
    assertEquals("1", environment(container).get("CUDA_VISIBLE_DEVICES"));
    assertEquals("80", environment(container).get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    tags = null;
    Container untagged = container(25, false, ExecutionType.GUARANTEED);
    environment(untagged).put("GPUSAGE_THREAD_PERCENT", "100");
    listener().containerInitialized(untagged);
    assertEquals("25", environment(untagged).get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
  }

  @Test
  void whatFindsNoRoomIsRefusedAndToldWhy() {
    GpuShareNodeListener listener = listener();
    listener.containerInitialized(container(75, false, ExecutionType.GUARANTEED));
    listener.containerInitialized(container(75, false, ExecutionType.GUARANTEED));
    Container late = container(50, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(late);
    assertRefused(late, "has room for share 50");
  }

  @Test
  void containersOfOneTrainingNeverShareAGpu() {
    tags = new HashSet<>(Arrays.asList("gpusage-gpu-0", "gpusage-apart"));
    GpuShareNodeListener listener = listener();
    Container first = container(25, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(first);
    Container second = container(25, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(second);
    assertEquals("0 1", environment(first).get("CUDA_VISIBLE_DEVICES") + " " + environment(second).get("CUDA_VISIBLE_DEVICES"));
    Container third = container(25, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(third);
    assertRefused(third, "has room for share 25");
  }

  @Test
  void theSwitchEndsNoBinding() throws Exception {
    conf.set(Settings.SWITCH_FILE, Files.createFile(folder.resolve("off")).toString());
    Container container = container(60, false, ExecutionType.GUARANTEED);
    listener().containerInitialized(container);
    assertEquals("0", environment(container).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void whatHasNoShareSeesNoGpuOfThoseThatHave() {
    Container container = container(0, false, ExecutionType.GUARANTEED);
    environment(container).put("CUDA_VISIBLE_DEVICES", "0,1");
    environment(container).put("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere");
    listener().containerInitialized(container);
    assertEquals(Collections.singletonMap("CUDA_VISIBLE_DEVICES", ""), environment(container));
    container.getResource().setResourceValue(Settings.GPU_RESOURCE, 1);
    environment(container).put("CUDA_VISIBLE_DEVICES", "4");
    listener().containerInitialized(container);
    assertEquals("4", environment(container).get("CUDA_VISIBLE_DEVICES"), "a whole GPU of YARN's own");
  }

  @Test
  void anOpportunisticContainerTakesNobodysPlace() {
    Container container = container(60, false, ExecutionType.OPPORTUNISTIC);
    listener().containerInitialized(container);
    assertRefused(container, "goes to an opportunistic container");
    assertEquals("0=100,1=100", Metrics.free());
  }

  @Test
  void aListenerThatCouldNotStartRefusesSharesAndSaysWhy() {
    conf.set(Settings.NODE_GPUS, "GPU 0");
    GpuShareNodeListener listener = listener();
    Container container = container(60, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(container);
    assertRefused(container, "could not start here");
    Container plain = container(0, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(plain);
    assertTrue(plain.getLaunchContext().getCommands().isEmpty());
    assertTrue(Metrics.troubles().contains("must be UUIDs or indices; got GPU 0"));
    conf.set(Settings.NODE_GPUS, "0");
    listener();
    assertFalse(Metrics.troubles().contains("listener"));
  }

  @Test
  void anEarlierContainersGpuIsTheOneInTheStateStore() throws Exception {
    Container first = container(60, false, ExecutionType.GUARANTEED);
    listener().containerInitialized(first);
    assertEquals(Collections.singletonList("0"), first.getResourceMappings().getAssignedResources(Settings.DEFAULT_SHARE_RESOURCE));

    Container earlier = container(60, true, ExecutionType.GUARANTEED);
    assign(earlier, "1");
    GpuShareNodeListener restarted = listener();
    Container later = container(50, false, ExecutionType.GUARANTEED);
    containers.remove(first.getContainerId());
    restarted.containerInitialized(later); // before the earlier one is taken up
    restarted.containerInitialized(earlier);
    assertEquals("1", environment(earlier).get("CUDA_VISIBLE_DEVICES"));
    assertEquals("0", environment(later).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void whatTheStateStoreCannotKeepDoesNotRun() {
    store =
        new NMNullStateStoreService() {
          @Override
          public void storeAssignedResources(Container container, String type, List<Serializable> assigned) throws IOException {
            throw new IOException("disk full");
          }
        };
    Container container = container(60, false, ExecutionType.GUARANTEED);
    listener().containerInitialized(container);
    assertRefused(container, "has room for share 60");
    assertEquals("0=100,1=100", Metrics.free());
  }

  @Test
  void theDevicesOfAnotherPluginStayVisibleAndSoDoesEverythingWhereTheSiteSaysSo() {
    conf.set(Settings.NODE_GPUS, "0,1");
    plugins = "yarn.io/gpu";
    Container other = container(0, false, ExecutionType.GUARANTEED);
    other.getResource().setResourceValue(Settings.GPU_RESOURCE, 1);
    environment(other).put("CUDA_VISIBLE_DEVICES", "MIG-1");
    listener().containerInitialized(other);
    assertEquals("MIG-1", environment(other).get("CUDA_VISIBLE_DEVICES"));
    plugins = ResourceInformation.FPGA_URI;
    Container fpga = container(0, false, ExecutionType.GUARANTEED);
    fpga.getResource().setResourceValue(ResourceInformation.FPGA_URI, 1);
    listener().containerInitialized(fpga);
    assertEquals("", environment(fpga).get("CUDA_VISIBLE_DEVICES"), "which has no GPU");
    conf.setBoolean(Settings.HIDE_GPUS, false);
    Container plain = container(0, false, ExecutionType.GUARANTEED);
    listener().containerInitialized(plain);
    assertEquals(Collections.emptyMap(), environment(plain));
  }

  @Test
  void whereAnEarlierContainersGpuIsNotKnownNothingStartsUntilItEnds() {
    Container earlier = container(20, true, ExecutionType.GUARANTEED);
    GpuShareNodeListener listener = listener();
    listener.containerInitialized(earlier);
    Container later = container(50, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(later);
    assertRefused(later, "has room for share 50");
    containers.remove(later.getContainerId());
    containers.remove(earlier.getContainerId());
    listener.stateChanged(earlier, ContainerState.DONE);
    Container last = container(50, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(last);
    assertEquals("0", environment(last).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void aGpuIsNotGivenOutWhileAContainerRunsThatTheNodeManagerHasLostSightOf() throws Exception {
    Container earlier = container(60, false, ExecutionType.GUARANTEED);
    GpuShareNodeListener listener = listener();
    listener.containerInitialized(earlier);
    Path script = folder.resolve(earlier.getContainerId().toString()).resolve("x.sh");
    Files.createDirectories(script.getParent());
    Files.write(script, "sleep 60; true".getBytes(StandardCharsets.UTF_8));
    Process running = new ProcessBuilder("sh", script.toString()).start();
    try {
      earlier.cloneAndGetContainerStatus().setExitStatus(ContainerOutcome.MISSED);
      containers.remove(earlier.getContainerId());
      listener.stateChanged(earlier, ContainerState.DONE);
      Container later = container(50, false, ExecutionType.GUARANTEED);
      listener.containerInitialized(later);
      assertEquals("1", environment(later).get("CUDA_VISIBLE_DEVICES"));
      Container last = container(60, false, ExecutionType.GUARANTEED);
      listener.containerInitialized(last);
      assertRefused(last, "has room for share 60"); // which YARN counts as free
    } finally {
      running.destroyForcibly().waitFor();
    }
    assertTimeoutPreemptively(
        Duration.ofMinutes(5),
        () -> {
          while (!Metrics.free().startsWith("0=100")) {
            Thread.sleep(20);
          }
        });
  }

  private GpuShareNodeListener listener() {
    GpuShareNodeListener listener = new GpuShareNodeListener();
    listener.init(
        ProcessorTest.answering(
            Context.class, "getConf", conf, "getContainers", containers, "getNMStateStore", store, "getResourcePluginManager", pluginManager()));
    return listener;
  }

  private Container container(long share, boolean recovering, ExecutionType type) {
    ContainerId id = ContainerId.fromString("container_1700000000000_0001_01_00000" + (2 + count++));
    ContainerLaunchContext launch = ContainerLaunchContext.newInstance(null, new HashMap<>(), null, null, null, null);
    ContainerTokenIdentifier token =
        new ContainerTokenIdentifier(id, 1, "localhost:1", "alice", GpuShareResourceCalculatorTest.vector(64, 1, 0, share), 0, 0, 0,
            org.apache.hadoop.yarn.api.records.Priority.newInstance(0), 0, null, null,
            org.apache.hadoop.yarn.server.api.ContainerType.TASK, type, -1, tags);
    ContainerStatus status =
        ContainerStatus.newInstance(id, org.apache.hadoop.yarn.api.records.ContainerState.RUNNING, "", ContainerExitStatus.INVALID);
    Container container =
        ProcessorTest.answering(
            Container.class,
            "getContainerId", id,
            "getLaunchContext", launch,
            "getResource", GpuShareResourceCalculatorTest.vector(64, 1, 0, share),
            "isRecovering", recovering,
            "getResourceMappings", new ResourceMappings(),
            "getContainerTokenIdentifier", token,
            "cloneAndGetContainerStatus", status,
            "getContainerState", ContainerState.NEW);
    containers.put(id, container);
    return container;
  }

  private ResourcePluginManager pluginManager() {
    return new ResourcePluginManager() {
      @Override
      public Map<String, ResourcePlugin> getNameToPlugins() {
        return plugins.isEmpty() ? null : Collections.singletonMap(plugins, null);
      }
    };
  }

  private static void assign(Container container, String gpu) throws Exception {
    new MemoryStateStore().storeAssignedResources(container, Settings.DEFAULT_SHARE_RESOURCE, Collections.singletonList(gpu));
  }

  /** Keeps what is assigned with the container, as the NodeManager's stores do. */
  private static final class MemoryStateStore extends NMNullStateStoreService {
    @Override
    public void storeAssignedResources(Container container, String type, List<Serializable> assigned) {
      updateContainerResourceMapping(container, type, assigned);
    }
  }

  private static Map<String, String> environment(Container container) {
    return container.getLaunchContext().getEnvironment();
  }

  private static void assertRefused(Container container, String why) {
    String command = container.getLaunchContext().getCommands().get(0);
    assertTrue(command.startsWith("echo '" + GpuShareNodeListener.REFUSAL) && command.contains(why), command);
    assertTrue(command.endsWith("sleep 10; exit 64"), command + ": YARN sends no stream of them");
  }
}
