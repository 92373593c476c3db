package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
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
  private Set<String> tags;

  @BeforeEach
  void offerTwoGpus() {
    conf.set(Settings.NODE_GPUS, "0,1");
    conf.set(Settings.NODE_JOURNAL, folder.resolve("journal").toString());
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
  void whatFindsNoRoomWaitsForItInAShellOfItsOwn() throws Exception {
    GpuShareNodeListener listener = listener();
    Container first = container(75, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(first);
    listener.containerInitialized(container(75, false, ExecutionType.GUARANTEED));
    Container late = container(50, false, ExecutionType.GUARANTEED);
    late.getLaunchContext().setCommands(Collections.singletonList("printf %s.%s $CUDA_VISIBLE_DEVICES $GPUSAGE_SHARE"));
    listener.containerInitialized(late);
    Process process = run(late);
    assertFalse(process.waitFor(300, TimeUnit.MILLISECONDS));
    containers.remove(first.getContainerId());
    listener.stateChanged(first, ContainerState.DONE);
    assertEquals("0.50", output(process));
    assertEquals(0, process.waitFor());
    Path written = GpuWaitQueue.file(folder.toString(), late.getContainerId().toString());
    assertTrue(Files.exists(written));
    listener().stateChanged(late, ContainerState.DONE); // after a restart of the NodeManager
    assertFalse(Files.exists(written));
  }

  @Test
  void whoeverWaitsTooLongIsToldWhy() throws Exception {
    conf.setLong(Settings.NODE_ROOM_S, 1);
    GpuShareNodeListener listener = listener();
    listener.containerInitialized(container(75, false, ExecutionType.GUARANTEED));
    listener.containerInitialized(container(75, false, ExecutionType.GUARANTEED));
    Container late = container(50, false, ExecutionType.GUARANTEED);
    late.getLaunchContext().setCommands(Collections.singletonList("echo it ran"));
    listener.containerInitialized(late);
    Process process = run(late);
    assertEquals("gpusage: no GPU of this node has room for share 50\n", output(process));
    assertEquals(64, process.waitFor());
  }

  @Test
  void roomIsLookedForWithoutTheLockOfTheContainerThatWaits() throws Exception {
    GpuShareNodeListener listener = listener();
    Container first = container(75, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(first);
    listener.containerInitialized(container(75, false, ExecutionType.GUARANTEED));
    Container late = container(50, false, ExecutionType.GUARANTEED);
    late.getLaunchContext().setCommands(Collections.singletonList("printf $GPUSAGE_SHARE"));
    ReentrantLock dispatchers = new ReentrantLock();
    Container locked = locked(late, dispatchers);
    containers.put(late.getContainerId(), locked);
    dispatchers.lock(); // as in a transition of the container
    try {
      listener.containerInitialized(locked);
      Thread other = new Thread(() -> listener.stateChanged(first, ContainerState.DONE));
      other.start();
      other.join(10_000);
      assertFalse(other.isAlive(), "it waits for the dispatcher, which will wait for it");
      assertEquals("50", output(run(late)));
      listener.stateChanged(locked, ContainerState.DONE);
    } finally {
      dispatchers.unlock();
    }
  }

  private static Container locked(Container container, ReentrantLock lock) {
    Class<?>[] types = {Container.class};
    return (Container)
        Proxy.newProxyInstance(
            Container.class.getClassLoader(),
            types,
            (proxy, method, arguments) -> {
              lock.lock();
              try {
                return method.invoke(container, arguments);
              } finally {
                lock.unlock();
              }
            });
  }

  private Process run(Container container) throws Exception {
    String command = String.join(" ", container.getLaunchContext().getCommands());
    return new ProcessBuilder("bash", "-c", "exec /bin/bash -c \"" + command.replace("$", "\\$") + "\"").redirectErrorStream(true).start();
  }

  private static String output(Process process) throws Exception {
    java.util.Scanner lines = new java.util.Scanner(process.getInputStream(), "UTF-8").useDelimiter("\\A");
    return lines.hasNext() ? lines.next() : "";
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
    assertFalse(Files.exists(folder.resolve("journal")));
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
  void anEarlierContainersGpuIsThatOfItsLaunchScript() throws Exception {
    Container earlier = container(60, true, ExecutionType.GUARANTEED);
    writeScript(earlier, "1", 60);
    GpuShareNodeListener listener = listener();
    listener.containerInitialized(earlier);
    Container later = container(50, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(later);
    assertEquals("1", environment(earlier).get("CUDA_VISIBLE_DEVICES"));
    assertEquals("0", environment(later).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void aNewContainerWaitsForNoneThatIsStillToBeTakenUp() throws Exception {
    Container earlier = container(60, true, ExecutionType.GUARANTEED);
    writeScript(earlier, "0", 60);
    Container later = container(50, false, ExecutionType.GUARANTEED);
    listener().containerInitialized(later);
    assertEquals("1", environment(later).get("CUDA_VISIBLE_DEVICES"));
  }

  @Test
  void whereAnEarlierContainersGpuIsNotKnownNothingStartsUntilItEnds() {
    Container earlier = container(20, true, ExecutionType.GUARANTEED);
    GpuShareNodeListener listener = listener();
    listener.containerInitialized(earlier);
    Container later = container(50, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(later);
    String command = later.getLaunchContext().getCommands().get(0);
    assertTrue(command.contains("has room for share 50"), command);
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
    } finally {
      running.destroyForcibly().waitFor();
    }
    Container last = container(60, false, ExecutionType.GUARANTEED);
    listener.containerInitialized(last);
    assertEquals("0", environment(last).get("CUDA_VISIBLE_DEVICES"));
  }

  private GpuShareNodeListener listener() {
    GpuShareNodeListener listener = new GpuShareNodeListener();
    LocalDirsHandlerService folders =
        new LocalDirsHandlerService() {
          @Override
          public java.util.List<String> getLocalDirsForRead() {
            return getLocalDirs();
          }

          @Override
          public java.util.List<String> getLocalDirs() {
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
            "getContainerTokenIdentifier", token,
            "cloneAndGetContainerStatus", status,
            "getContainerState", ContainerState.NEW);
    containers.put(id, container);
    return container;
  }

  private void writeScript(Container container, String gpu, long share) throws Exception {
    Path place = folder.resolve("nmPrivate").resolve(APPLICATION).resolve(container.getContainerId().toString());
    Files.createDirectories(place);
    String script = "export CUDA_VISIBLE_DEVICES=\"" + gpu + "\"\nexport GPUSAGE_SHARE=\"" + share + "\"\n";
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
