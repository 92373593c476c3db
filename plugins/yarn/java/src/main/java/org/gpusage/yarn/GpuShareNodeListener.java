package org.gpusage.yarn;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.server.nodemanager.ContainerStateTransitionListener;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerEvent;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerEventType;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerImpl;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerState;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Binds each container that has a share to one GPU of its node, and says so in its environment, over whatever the user put there.
 *
 * <p>It runs in the NodeManager's dispatcher, which an exception would end: nothing here waits, and no exception leaves. A share that is not
 * bound does not run, whatever the reason: two containers would have one GPU. The switch ends no binding, because the share was given before.
 */
public class GpuShareNodeListener implements ContainerStateTransitionListener {
  static final int REFUSED_STATUS = 64;

  /** How each of our refusals begins. It must hold no character that is special to bash. */
  static final String REFUSAL = "gpusage: no GPU of this node ";

  /** MPS's priority of a container's processes: 1 lets those of a job with a latency limit go first. */
  static final String PRIORITY = "GPUSAGE_CLIENT_PRIORITY";

  /** The share itself, which a NodeManager that restarts reads again. */
  static final String SHARE = "GPUSAGE_SHARE";

  private static final Logger LOG = LoggerFactory.getLogger(GpuShareNodeListener.class);
  private static final String TROUBLE = "listener";

  private final Set<String> lingering = ConcurrentHashMap.newKeySet();
  private Context context;
  private String share = Settings.DEFAULT_SHARE_RESOURCE;
  private NodeSettings node;
  private Bindings bindings;
  private GpuWaitQueue room;
  private UsageSampler sampler;

  @Override
  public void init(Context context) {
    try {
      share = Settings.shareResource(context.getConf());
      start(context);
      Metrics.clearTrouble(TROUBLE);
    } catch (Throwable failure) {
      bindings = null;
      Metrics.recordFailure("listener.init", failure);
      Metrics.trouble(TROUBLE, "could not start, so that no container with a share runs here: " + failure.getMessage());
    }
  }

  @Override
  public void preTransition(ContainerImpl container, ContainerState before, ContainerEvent event) {
    try {
      if (event.getType() == ContainerEventType.INIT_CONTAINER) {
        containerInitialized(container);
      }
    } catch (Throwable failure) {
      Metrics.recordFailure("listener.pre", failure);
      refuseOnFailure(container);
    }
  }

  @Override
  public void postTransition(
      ContainerImpl container, ContainerState before, ContainerState after, ContainerEvent event) {
    try {
      if (before != after) {
        stateChanged(container, after);
      }
    } catch (Throwable failure) {
      Metrics.recordFailure("listener.post", failure);
    }
  }

  void start(Context context) {
    Configuration conf = context.getConf();
    this.context = context;
    node = new NodeSettings(conf);
    node.readMemory();
    bindings = new Bindings(node.gpus, node.journal());
    room = new GpuWaitQueue(node.roomLimitS(), this::bindWaiting, this::refuseWaiting);
    sampler = new UsageSampler(conf.getTrimmed(Settings.USAGE_COMMAND, ""), node.usageDirectory());
    Metrics.showFree(this::free);
    Metrics.showUsage(sampler::usageReport);
    Metrics.started(this);
    LOG.info("gpusage: shares of GPUs {}", node.gpus);
  }

  void containerInitialized(Container container) {
    long required = shareOf(container);
    boolean recovering = container.isRecovering();
    if (required > 0 && bindings != null) {
      if (recovering) {
        recover(container);
      } else if (!isOpportunistic(container)) {
        bind(container, required);
      }
    }
    setGpuEnvironment(container);
    if (required > 0 && !recovering && (room == null || !room.hasWaiting(id(container)))) {
      boolean bound = bindings != null && bindings.has(id(container));
      Metrics.count(bound ? Metrics.Counter.GPUS_BOUND : Metrics.Counter.CONTAINERS_REFUSED);
    }
  }

  /** Release a container at its end; if it starts again, with its master's environment, prepare it again. */
  void stateChanged(Container container, ContainerState after) {
    if (after == ContainerState.SCHEDULED) {
      boolean refused = bindings != null && shareOf(container) > 0 && !bindings.has(id(container)); // or it waits
      if (!refused) {
        setGpuEnvironment(container);
      }
    } else if (after == ContainerState.RUNNING && bindings != null) {
      bindings.of(id(container)).ifPresent(binding -> sample(gpuRequestOf(container), binding));
    } else if (after == ContainerState.DONE && bindings != null) {
      room.forget(id(container), context.getLocalDirsHandler().getLocalDirs());
      sampler.end(id(container));
      if (container.cloneAndGetContainerStatus().getExitStatus() == ContainerOutcome.MISSED) {
        lingering.add(id(container));
        releaseLingering();
      } else {
        bindings.release(id(container));
        room.retry();
      }
    }
  }

  /** Release those whose end was missed once nothing of them runs: a NodeManager that was killed at a start does not find again what it started. */
  private void releaseLingering() {
    for (String id : lingering) {
      if (!LaunchScript.runs(id)) {
        bindings.release(id);
        lingering.remove(id);
      }
    }
  }

  private String free() {
    releaseLingering();
    return bindings.free();
  }

  /** Bind a new container, once we know what each earlier one has. */
  private void bind(Container container, long required) {
    String id = id(container);
    for (Container other : context.getContainers().values()) {
      if (other.isRecovering() && shareOf(other) > 0) {
        recover(other);
      }
    }
    releaseLingering();
    bindings.retainOnly(known -> known.equals(id) || isAlive(known) || lingering.contains(known));
    bindings.bind(id, required, gpuRequestOf(container).assignedGpus, false);
  }

  /** Bind a container that waits for room on the GPU that it is meant for, and after a while on any; return its variables as a shell reads them. */
  private Optional<String> bindWaiting(GpuRequest gpuRequest, boolean anyGpu) {
    releaseLingering();
    if (!bindings.bind(gpuRequest.id, gpuRequest.share, gpuRequest.assignedGpus, anyGpu).isPresent()) {
      return Optional.empty();
    }
    Bindings.Binding binding = bindings.of(gpuRequest.id).get();
    StringBuilder lines = new StringBuilder();
    gpuRequest.variables(node, binding).forEach((name, value) -> lines.append("export ").append(name).append("=\"").append(value).append("\"\n"));
    Metrics.count(Metrics.Counter.GPUS_BOUND);
    sample(gpuRequest, binding);
    return Optional.of(lines.toString());
  }

  private String refuseWaiting(GpuRequest gpuRequest) {
    Metrics.count(Metrics.Counter.CONTAINERS_REFUSED);
    return refusal("has room for share " + gpuRequest.share) + "\n";
  }

  private GpuRequest gpuRequestOf(Container container) {
    return new GpuRequest(container, shareOf(container), node);
  }

  /** Sample what a container does on its GPU; several whole GPUs are nobody else's, and are not sampled. */
  private void sample(GpuRequest gpuRequest, Bindings.Binding binding) {
    if (binding.gpus().size() == 1) {
      sampler.begin(gpuRequest.id, binding, limits(gpuRequest, binding));
    }
  }

  /** Take up a container that an earlier NodeManager started: by the journal, else by its launch script, else as one that may be on any GPU. */
  private void recover(Container container) {
    String id = id(container);
    if (bindings.has(id) || container.cloneAndGetContainerStatus().getExitStatus() != ContainerExitStatus.INVALID) {
      return; // known, or at its end
    }
    Optional<Bindings.Binding> started = startedWith(container.getContainerId());
    bindings.adopt(id, started.orElse(new Bindings.Binding(Bindings.Binding.UNKNOWN, shareOf(container))));
    Metrics.count(started.isPresent() ? Metrics.Counter.GPUS_RECOVERED : Metrics.Counter.GPUS_UNKNOWN);
    LOG.warn(
        "gpusage: {} is not in the journal; {}",
        id,
        started
            .map(known -> "it was started with " + known.share + " of GPU " + known.gpu)
            .orElse("its GPU is not known, so that no container with a share starts here until it ends"));
  }

  private Optional<Bindings.Binding> startedWith(ContainerId id) {
    try {
      return LaunchScript.binding(context.getLocalDirsHandler().getLocalDirsForRead(), id);
    } catch (IOException | RuntimeException unreadable) {
      Metrics.recordFailure("launch script's reading", unreadable);
      return Optional.empty();
    }
  }

  /** Write to a container's environment which GPU it has. A container with a share and no GPU must not run. */
  private void setGpuEnvironment(Container container) {
    if (shareOf(container) == 0) {
      hideGpus(container);
      return;
    }
    Optional<Bindings.Binding> binding = bindings == null ? Optional.empty() : bindings.of(id(container));
    if (binding.isPresent()) {
      exposeGpu(container, binding.get());
    } else if (bindings == null) {
      refuse(container, "is given out, for gpusage could not start here");
    } else if (isOpportunistic(container)) {
      refuse(container, "goes to an opportunistic container; shares are for guaranteed ones");
    } else if (container.isRecovering() || node.roomLimitS() == 0) {
      refuse(container, "has room for share " + shareOf(container));
    } else if (!room.hasWaiting(id(container))) {
      waitForRoom(container);
    }
  }

  /** Let a container wait in a shell of its own until there is room: this thread must not, and its user's command begins only then. */
  private void waitForRoom(Container container) {
    Map<String, String> environment = container.getLaunchContext().getEnvironment();
    removeMpsVariables(environment);
    environment.put("CUDA_VISIBLE_DEVICES", "");
    String refusal = refusal("has room for share " + shareOf(container));
    Path file = GpuWaitQueue.file(context.getLocalDirsHandler().getLocalDirs().get(0), id(container));
    List<String> commands = new ArrayList<>();
    commands.add(GpuWaitQueue.command(file, node.roomLimitS(), refusal));
    commands.addAll(container.getLaunchContext().getCommands());
    container.getLaunchContext().setCommands(commands);
    Metrics.count(Metrics.Counter.CONTAINERS_WAITED);
    room.add(gpuRequestOf(container), file);
  }

  /** Return the variables of a container that has {@code binding}, and may use {@code threads} percent of the GPU's threads if that is more than its share. */
  static Map<String, String> variables(NodeSettings node, Bindings.Binding binding, long threads) {
    Map<String, String> variables = new LinkedHashMap<>();
    variables.put("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    variables.put("CUDA_VISIBLE_DEVICES", binding.gpu);
    variables.put(SHARE, String.valueOf(binding.share));
    if (binding.gpus().size() > 1) {
      return variables; // a daemon of MPS's serves one GPU; several are this container's alone
    }
    variables.put("CUDA_MPS_PIPE_DIRECTORY", node.pipeDirectory(binding.gpu));
    long percent = Math.max(binding.share, Math.min(threads, Settings.WHOLE_GPU));
    variables.put("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", String.valueOf(percent));
    long capMib = node.capMib(binding.gpu, binding.share);
    if (capMib > 0) {
      variables.put("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=" + capMib + "M");
    }
    return variables;
  }

  private void exposeGpu(Container container, Bindings.Binding binding) {
    Map<String, String> variables = gpuRequestOf(container).variables(node, binding);
    Map<String, String> environment = container.getLaunchContext().getEnvironment();
    removeMpsVariables(environment);
    environment.putAll(variables);
    if (variables.containsKey("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")) { // JAX and TensorFlow would take a part of the whole GPU, whose size they see
      environment.putIfAbsent("XLA_PYTHON_CLIENT_PREALLOCATE", "false");
      environment.putIfAbsent("TF_FORCE_GPU_ALLOW_GROWTH", "true");
    }
  }

  /** Return the variables that hold a container to its share; none where it runs as another user, whose MPS server a client of ours would keep away. */
  private Map<String, String> limits(GpuRequest gpuRequest, Bindings.Binding binding) {
    Map<String, String> limits = new LinkedHashMap<>();
    if (node.runsAsOurselves()) {
      limits.putAll(gpuRequest.variables(node, binding));
      limits.keySet().removeIf(name -> !name.startsWith("CUDA_"));
    }
    return limits;
  }

  /** Keep a container without a share off the shared GPUs. We leave alone containers that have whole GPUs from YARN itself. */
  private void hideGpus(Container container) {
    if (node != null && !node.gpus.isEmpty() && NodeGpus.amount(container.getResource(), Settings.GPU_RESOURCE) == 0) {
      Map<String, String> environment = container.getLaunchContext().getEnvironment();
      removeMpsVariables(environment);
      environment.put("CUDA_VISIBLE_DEVICES", "");
    }
  }

  private static void removeMpsVariables(Map<String, String> environment) {
    environment.keySet().removeIf(name -> name.startsWith("CUDA_MPS_"));
  }

  private static void refuse(Container container, String why) {
    container.getLaunchContext().setCommands(Collections.singletonList(refusal(why)));
  }

  private static String refusal(String why) {
    return "echo '" + REFUSAL + why + "' >&2; exit " + REFUSED_STATUS;
  }

  /** Refuse a container if our own code failed on it, unless it has no share. */
  private void refuseOnFailure(Container container) {
    try {
      if (shareOf(container) > 0) {
        refuse(container, "is given out, for gpusage failed here");
      }
    } catch (Throwable failure) {
      Metrics.recordFailure("listener.pre", failure);
    }
  }

  private static boolean isOpportunistic(Container container) {
    return container.getContainerTokenIdentifier().getExecutionType() == ExecutionType.OPPORTUNISTIC;
  }

  private long shareOf(Container container) {
    return NodeGpus.amount(container.getResource(), share);
  }

  private static String id(Container container) {
    return container.getContainerId().toString();
  }

  private boolean isAlive(String id) {
    try {
      Container container = context.getContainers().get(ContainerId.fromString(id));
      return container != null && container.getContainerState() != ContainerState.DONE;
    } catch (IllegalArgumentException noContainer) {
      return false;
    }
  }
}
