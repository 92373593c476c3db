// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.IOException;
import java.net.InetAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.ApplicationConstants;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.LocalResource;
import org.apache.hadoop.yarn.api.records.LocalResourceType;
import org.apache.hadoop.yarn.api.records.LocalResourceVisibility;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.URL;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.security.AMRMTokenIdentifier;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * Runs the user's command in as many containers as the plan says, each with the plan's share, and ends as the command ended.
 *
 * <p>One thread runs one loop, with one heartbeat each time: it handles each response before it sends the next. The application's
 * diagnostics begin with {@code gpusage: exit status N}; the client exits with that status.
 */
@InterfaceAudience.Public
@InterfaceStability.Evolving
public final class GpuShareApplicationMaster {
  static final String COMMAND = "GPUSAGE_COMMAND";
  static final String VARIABLES = "GPUSAGE_ENV";
  static final String FILES = "GPUSAGE_FILES";

  private static final int MOST_LOSSES = 5;
  private static final long PATIENCE_NS = TimeUnit.SECONDS.toNanos(60);
  private static final int SHOWN_CHARACTERS = 3000;

  private final Configuration conf = new YarnConfiguration();
  private final AMRMClient<ContainerRequest> manager = AMRMClient.createAMRMClient();
  private final NMClient nodes = NMClient.createNMClient();
  private final BlacklistedNodes avoided = new BlacklistedNodes(manager::updateBlacklist);
  private final List<Task> tasks = new ArrayList<>();
  private Plan plan;
  private Rescue rescue;
  private boolean exceedsQueue;
  private String command;
  private Map<String, String> variables;
  private Map<String, LocalResource> files;
  private int status;
  private String reason = "";

  public static void main(String[] arguments) {
    try {
      System.exit(new GpuShareApplicationMaster().run(System.getenv()));
    } catch (Exception failure) {
      failure.printStackTrace();
      System.exit(1);
    }
  }

  private int run(Map<String, String> environment) throws Exception {
    conf.setLong(YarnConfiguration.CLIENT_NM_CONNECT_MAX_WAIT_MS, TimeUnit.SECONDS.toMillis(15));
    conf.setLong(YarnConfiguration.CLIENT_NM_CONNECT_RETRY_INTERVAL_MS, TimeUnit.SECONDS.toMillis(1));
    manager.init(conf);
    manager.start();
    nodes.init(conf);
    nodes.cleanupRunningContainersOnStop(false);
    nodes.start();
    RegisterApplicationMasterResponse registered =
        manager.registerApplicationMaster(InetAddress.getLocalHost().getHostName(), -1, "");
    List<Container> previous = registered.getContainersFromPreviousAttempts();
    try {
      read(environment);
      long most = NodeGpus.amount(registered.getMaximumResourceCapability(), Settings.shareResource(conf));
      rescue.limit(most == 0 ? Settings.WHOLE_GPU : most); // a new ResourceManager knows no node yet
      exceedsQueue = most > 0 && plan.share > most;
    } catch (Plan.PlanException | IOException unreadable) {
      fail(2, unreadable.getMessage());
    }
    try {
      adoptAndRequest(previous);
      runToCompletion();
    } catch (YarnException | IOException failure) {
      fail(1, failure.toString());
    }
    unregister();
    return status;
  }

  private void read(Map<String, String> environment) throws Plan.PlanException, IOException {
    rescue = new Rescue(conf, attempt(environment));
    plan = Plan.parse(environment.getOrDefault(Plan.VARIABLE, ""));
    command = FlatJson.fromBase64(environment.getOrDefault(COMMAND, ""));
    variables = texts(environment, VARIABLES);
    files = new HashMap<>();
    for (Map.Entry<String, String> file : texts(environment, FILES).entrySet()) {
      files.put(file.getKey(), file(file.getValue()));
    }
    if (command.isEmpty()) {
      throw new IOException(COMMAND + " must be a command in base64; got nothing. Submit with gpusage yarn submit.");
    }
  }

  private static int attempt(Map<String, String> environment) {
    String ours = environment.get(ApplicationConstants.Environment.CONTAINER_ID.key());
    return ContainerId.fromString(ours).getApplicationAttemptId().getAttemptId();
  }

  private static Map<String, String> texts(Map<String, String> environment, String name) throws IOException {
    String text = environment.getOrDefault(name, "");
    return text.isEmpty() ? Collections.emptyMap() : FlatJson.parse(FlatJson.fromBase64(text));
  }

  private static LocalResource file(String text) throws IOException {
    try {
      String[] words = text.split(" ");
      return LocalResource.newInstance(
          URL.fromURI(new URI(words[0])),
          LocalResourceType.FILE,
          LocalResourceVisibility.APPLICATION,
          Long.parseLong(words[1]),
          Long.parseLong(words[2]));
    } catch (URISyntaxException | RuntimeException error) {
      throw new IOException(FILES + " must hold 'URL bytes milliseconds'; got '" + text + "'", error);
    }
  }

  /** Adopt the containers that an earlier attempt left running, and ask for the others. */
  private void adoptAndRequest(List<Container> previous) {
    if (status != 0) {
      return;
    }
    for (long number = 1; number <= plan.containers; number++) {
      tasks.add(new Task(number, plan));
    }
    for (Container container : previous) {
      Task task = taskOf(container);
      if (task == null || task.container != null) {
        manager.releaseAssignedContainer(container.getId());
      } else {
        task.container = container;
        log("goes on in " + container.getId());
      }
    }
    tasks.stream().filter(task -> task.container == null).forEach(this::requestContainer);
  }

  private void runToCompletion() throws YarnException, IOException, InterruptedException {
    long period = conf.getLong(Settings.HEARTBEAT_MS, 1000);
    while (status == 0 && !tasks.stream().allMatch(task -> task.done)) {
      long done = tasks.stream().filter(task -> task.done).count();
      AllocateResponse answer = heartbeat((float) done / tasks.size());
      for (ContainerStatus ended : answer.getCompletedContainersStatuses()) {
        tasks.stream().filter(task -> task.runsIn(ended.getContainerId())).forEach(task -> finish(task, ended));
      }
      for (Container container : answer.getAllocatedContainers()) {
        start(container);
      }
      avoided.removeExpired(System.nanoTime());
      Thread.sleep(period);
    }
  }

  /**
   * Return what the ResourceManager answers.
   *
   * <p>One that has just started may know no node with shares yet, and calls what it took before more than it allows; the requests are kept, and
   * sent again with the next heartbeat. What is more than the queue allows, by what it said when this master registered, is refused for good.
   */
  private AllocateResponse heartbeat(float progress) throws YarnException, IOException, InterruptedException {
    long untilNs = System.nanoTime() + PATIENCE_NS;
    while (true) {
      try {
        return manager.allocate(progress);
      } catch (InvalidResourceRequestException refusal) {
        if (exceedsQueue || System.nanoTime() > untilNs) {
          throw refusal;
        }
        log("the ResourceManager refuses what is asked for, which is asked for again: " + refusal.getMessage());
        Thread.sleep(1000);
      }
    }
  }

  private void requestContainer(Task task) {
    Resource required = Resource.newInstance(plan.memoryMib > 0 ? plan.memoryMib : 1024, Math.max(plan.vcores, 1));
    String share = Settings.shareResource(conf);
    if (ResourceUtils.getResourceTypes().containsKey(share)) {
      required.setResourceValue(share, task.plan.share);
    }
    task.container = null;
    task.request =
        ContainerRequest.newBuilder()
            .capability(required)
            .priority(Priority.newInstance(1))
            .allocationRequestId(task.number)
            .nodeLabelsExpression(plan.labels.isEmpty() ? null : plan.labels.get(0)) // for the ResourceManager to better
            .build();
    manager.addContainerRequest(task.request);
  }

  private void start(Container container) {
    Task task = taskOf(container);
    if (task == null || task.request == null) {
      manager.releaseAssignedContainer(container.getId());
      return;
    }
    manager.removeContainerRequest(task.request);
    task.request = null;
    try {
      ContainerLaunchContext launch = task.launch(command, variables, files);
      launch.setTokens(tokens());
      nodes.startContainer(container, launch);
      task.container = container;
      log(container.getId() + " runs on " + container.getNodeId() + ", logs at http://"
          + container.getNodeHttpAddress() + "/node/containerlogs/" + container.getId() + "/" + System.getenv("USER"));
    } catch (YarnException | IOException failure) {
      log(container.getId() + " could not be started: " + failure);
      manager.releaseAssignedContainer(container.getId());
      avoided.add(container.getNodeId(), System.nanoTime());
      requestContainer(task);
    }
  }

  private void finish(Task task, ContainerStatus ended) {
    int exit = ended.getExitStatus();
    String story = ended.getDiagnostics() == null ? "" : ended.getDiagnostics();
    log(ended.getContainerId() + " ended with " + exit);
    switch (ContainerOutcome.of(exit, story)) {
      case SUCCEEDED:
        task.done = true;
        task.container = null;
        return;
      case REFUSED:
        avoided.add(task.container.getNodeId(), System.nanoTime());
        requestContainer(task);
        return;
      case PREEMPTED:
        requestContainer(task);
        return;
      case LOST:
        if (task.losses < MOST_LOSSES) {
          task.losses++;
          requestContainer(task);
          return;
        }
        break;
      case OUT_OF_MEMORY:
        if (rescue.retriesOnWholeGpu(task, shareOf(task.container))) {
          requestContainer(task);
          return;
        }
        break;
      default:
    }
    fail(exit > 0 ? exit : 1, ended.getContainerId() + " on " + task.container.getNodeId() + ": " + story);
    task.container = null;
  }

  /** Return what the scheduler made of the plan's share: the site's next step. */
  private long shareOf(Container container) {
    String share = Settings.shareResource(conf);
    boolean known = ResourceUtils.getResourceTypes().containsKey(share);
    return known ? container.getResource().getResourceValue(share) : plan.share;
  }

  private void unregister() throws YarnException, IOException {
    for (Task task : tasks) {
      if (task.container != null) {
        stop(task.container);
      }
    }
    String diagnostics = "gpusage: exit status " + status + rescue.messages() + (reason.isEmpty() ? "" : ". " + reason);
    log(diagnostics);
    boolean good = status == 0;
    manager.unregisterApplicationMaster(
        good ? FinalApplicationStatus.SUCCEEDED : FinalApplicationStatus.FAILED, diagnostics, null);
    nodes.stop();
    manager.stop();
  }

  private void stop(Container container) {
    try {
      nodes.stopContainer(container.getId(), container.getNodeId());
    } catch (YarnException | IOException gone) {
      log(container.getId() + " is left to the ResourceManager to end: " + gone);
    }
  }

  private void fail(int exit, String why) {
    if (status == 0) {
      status = exit;
      reason = why.substring(0, Math.min(why.length(), SHOWN_CHARACTERS));
    }
  }

  private Task taskOf(Container container) {
    long number = container.getAllocationRequestId();
    return number >= 1 && number <= tasks.size() ? tasks.get((int) number - 1) : null;
  }

  /** Return the user's tokens without the token that this master uses with the ResourceManager. */
  private static ByteBuffer tokens() throws IOException {
    Credentials credentials = new Credentials(UserGroupInformation.getCurrentUser().getCredentials());
    credentials.getAllTokens().removeIf(token -> token.getKind().equals(AMRMTokenIdentifier.KIND_NAME));
    DataOutputBuffer buffer = new DataOutputBuffer();
    credentials.writeTokenStorageToStream(buffer);
    return ByteBuffer.wrap(buffer.getData(), 0, buffer.getLength());
  }

  static void log(String what) {
    System.out.println("gpusage: " + what);
  }
}
