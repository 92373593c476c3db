package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.LocalDirsHandlerService;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerState;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class GpuShareNodeListenerTest {
  private static final String APPLICATION = "application_1700000000000_0001";

  @TempDir Path folder;
  private final Configuration conf = new Configuration(false);
  private final ConcurrentHashMap<ContainerId, Container> containers = new ConcurrentHashMap<>();
  private int count;

  @BeforeEach
  void offerTwoGpus() {
    conf.set(Settings.NODE_GPUS, "0,1");
    conf.set(Settings.NODE_JOURNAL, folder.resolve("journal").toString());
  }

  @Test
  void aShareIsBoundAndSaidOverWhateverItsUserPutThere() {
    Container container = container(60, false, ExecutionType.GUARANTEED);
    environment(container).put("CUDA_VISIBLE_DEVICES", "7");
    listener().enter(container);
    assertEquals("0", environment(container).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void theSwitchEndsNoBinding() throws Exception {
    conf.set(Settings.SWITCH_FILE, Files.createFile(folder.resolve("off")).toString());
    Container container = container(60, false, ExecutionType.GUARANTEED);
    listener().enter(container);
    assertEquals("0", environment(container).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void whatHasNoShareSeesNoGpuOfThoseThatHave() {
    Container container = container(0, false, ExecutionType.GUARANTEED);
    environment(container).put("CUDA_VISIBLE_DEVICES", "0,1");
    environment(container).put("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere");
    listener().enter(container);
    assertEquals(Collections.singletonMap("CUDA_VISIBLE_DEVICES", ""), environment(container));
    container.getResource().setResourceValue(Settings.GPU_RESOURCE, 1);
    environment(container).put("CUDA_VISIBLE_DEVICES", "4");
    listener().enter(container);
    assertEquals("4", environment(container).get("CUDA_VISIBLE_DEVICES"), "a whole GPU of YARN's own");
  }

  @Test
  void anOpportunisticContainerTakesNobodysPlace() {
    Container container = container(60, false, ExecutionType.OPPORTUNISTIC);
    listener().enter(container);
    assertRefused(container, "goes to an opportunistic container");
    assertFalse(Files.exists(folder.resolve("journal")));
  }

  @Test
  void aListenerThatCouldNotStartRefusesSharesAndSaysWhy() {
    conf.set(Settings.NODE_GPUS, "GPU 0");
    GpuShareNodeListener listener = listener();
    Container container = container(60, false, ExecutionType.GUARANTEED);
    listener.enter(container);
    assertRefused(container, "could not start here");
    Container plain = container(0, false, ExecutionType.GUARANTEED);
    listener.enter(plain);
    assertTrue(plain.getLaunchContext().getCommands().isEmpty());
    assertTrue(Metrics.troubles().contains("must be UUIDs or indices; got GPU 0"));
    conf.set(Settings.NODE_GPUS, "0");
    listener();
    assertFalse(Metrics.troubles().contains("listener"));
  }

  @Test
  void anEarlierContainersGpuIsThatOfItsLaunchScript() throws Exception {
    Container earlier = container(60, true, ExecutionType.GUARANTEED);
    writeScript(earlier, "1", 60);
    GpuShareNodeListener listener = listener();
    listener.enter(earlier);
    Container later = container(50, false, ExecutionType.GUARANTEED);
    listener.enter(later);
    assertEquals("1", environment(earlier).get("CUDA_VISIBLE_DEVICES"));
    assertEquals("0", environment(later).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void aNewContainerWaitsForNoneThatIsStillToBeTakenUp() throws Exception {
    Container earlier = container(60, true, ExecutionType.GUARANTEED);
    writeScript(earlier, "0", 60);
    Container later = container(50, false, ExecutionType.GUARANTEED);
    listener().enter(later);
    assertEquals("1", environment(later).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void whereAnEarlierContainersGpuIsNotKnownNothingStartsUntilItEnds() {
    Container earlier = container(20, true, ExecutionType.GUARANTEED);
    GpuShareNodeListener listener = listener();
    listener.enter(earlier);
    Container later = container(50, false, ExecutionType.GUARANTEED);
    listener.enter(later);
    assertRefused(later, "has room for share 50");
    containers.remove(earlier.getContainerId());
    listener.follow(earlier, ContainerState.DONE);
    Container last = container(50, false, ExecutionType.GUARANTEED);
    listener.enter(last);
    assertEquals("0", environment(last).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void aGpuIsNotGivenOutWhileAContainerRunsThatTheNodeManagerHasLostSightOf() throws Exception {
    Container earlier = container(60, false, ExecutionType.GUARANTEED);
    GpuShareNodeListener listener = listener();
    listener.enter(earlier);
    Path script = folder.resolve(earlier.getContainerId().toString()).resolve("x.sh");
    Files.createDirectories(script.getParent());
    Files.write(script, "sleep 60; true".getBytes(StandardCharsets.UTF_8));
    Process running = new ProcessBuilder("sh", script.toString()).start();
    try {
      earlier.cloneAndGetContainerStatus().setExitStatus(Ending.MISSED);
      containers.remove(earlier.getContainerId());
      listener.follow(earlier, ContainerState.DONE);
      Container later = container(50, false, ExecutionType.GUARANTEED);
      listener.enter(later);
      assertEquals("1", environment(later).get("CUDA_VISIBLE_DEVICES"));
    } finally {
      running.destroyForcibly().waitFor();
    }
    Container last = container(60, false, ExecutionType.GUARANTEED);
    listener.enter(last);
    assertEquals("0", environment(last).get("CUDA_VISIBLE_DEVICES"));
  }

  private GpuShareNodeListener listener() {
    GpuShareNodeListener listener = new GpuShareNodeListener();
    LocalDirsHandlerService folders =
        new LocalDirsHandlerService() {
          @Override
          public java.util.List<String> getLocalDirsForRead() {
            return Collections.singletonList(folder.toString());
          }
        };
    listener.init(
        ProcessorTest.answering(Context.class, "getConf", conf, "getContainers", containers, "getLocalDirsHandler", folders));
    return listener;
  }

  private Container container(long share, boolean recovering, ExecutionType type) {
    ContainerId id = ContainerId.fromString("container_1700000000000_0001_01_00000" + (2 + count++));
    ContainerLaunchContext launch = ContainerLaunchContext.newInstance(null, new HashMap<>(), null, null, null, null);
    ContainerTokenIdentifier token =
        new ContainerTokenIdentifier(id, 1, "localhost:1", "alice", GpuShareResourceCalculatorTest.vector(64, 1, 0, share), 0, 0, 0,
            org.apache.hadoop.yarn.api.records.Priority.newInstance(0), 0, null, null,
            org.apache.hadoop.yarn.server.api.ContainerType.TASK, type);
    ContainerStatus status =
        ContainerStatus.newInstance(id, org.apache.hadoop.yarn.api.records.ContainerState.RUNNING, "", ContainerExitStatus.INVALID);
    Container container =
        ProcessorTest.answering(
            Container.class,
            "getContainerId", id,
            "getLaunchContext", launch,
            "getResource", GpuShareResourceCalculatorTest.vector(64, 1, 0, share),
            "isRecovering", recovering,
            "getContainerTokenIdentifier", token,
            "cloneAndGetContainerStatus", status,
            "getContainerState", ContainerState.NEW);
    containers.put(id, container);
    return container;
  }

  private void writeScript(Container container, String gpu, long share) throws Exception {
    Path place = folder.resolve("nmPrivate").resolve(APPLICATION).resolve(container.getContainerId().toString());
    Files.createDirectories(place);
    String script = "export CUDA_VISIBLE_DEVICES=\"" + gpu + "\"\nexport CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=\"" + share + "\"\n";
    Files.write(place.resolve("launch_container.sh"), script.getBytes(StandardCharsets.UTF_8));
  }

  private static Map<String, String> environment(Container container) {
    return container.getLaunchContext().getEnvironment();
  }

  private static void assertRefused(Container container, String why) {
    String command = container.getLaunchContext().getCommands().get(0);
    assertTrue(command.startsWith("echo '" + GpuShareNodeListener.REFUSAL) && command.contains(why), command);
    assertTrue(command.endsWith("exit 64"), command);
  }
}
