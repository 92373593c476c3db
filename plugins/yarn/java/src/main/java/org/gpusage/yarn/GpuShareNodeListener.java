package org.gpusage.yarn;

import java.io.IOException;
import java.util.Collections;
import java.util.LinkedHashMap;
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
import org.apache.hadoop.yarn.util.resource.ResourceUtils;
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

  static final String MEMORY_CAP = "GPUSAGE_MEMORY_CAP_MIB";

  /** What a container's processes may use of the GPU's threads, in percent, if that is more than its share. */
  static final String THREADS = "GPUSAGE_THREAD_PERCENT";

  /** MPS's priority of a container's processes: 1 lets those of a job with a latency limit go first. */
  static final String PRIORITY = "GPUSAGE_CLIENT_PRIORITY";

  /** The share itself, which a NodeManager that restarts reads again. */
  static final String SHARE = "GPUSAGE_SHARE";

  private static final Logger LOG = LoggerFactory.getLogger(GpuShareNodeListener.class);
  private static final String TROUBLE = "listener";

  private final Set<String> lingering = ConcurrentHashMap.newKeySet();
  private Context context;
  private String share = Settings.DEFAULT_SHARE_RESOURCE;
  private Node node;
  private Bindings bindings;
  private UsageSampler sampler;

  @Override
  public void init(Context context) {
    try {
      share = Settings.shareResource(context.getConf());
      start(context);
      Metrics.mended(TROUBLE);
    } catch (Throwable failure) {
      bindings = null;
      Metrics.contain("listener.init", failure);
      Metrics.trouble(TROUBLE, "could not start, so that no container with a share runs here: " + failure.getMessage());
    }
  }

  @Override
  public void preTransition(ContainerImpl container, ContainerState before, ContainerEvent event) {
    try {
      if (event.getType() == ContainerEventType.INIT_CONTAINER) {
        enter(container);
      }
    } catch (Throwable failure) {
      Metrics.contain("listener.pre", failure);
      refuseAfterAll(container);
    }
  }

  @Override
  public void postTransition(
      ContainerImpl container, ContainerState before, ContainerState after, ContainerEvent event) {
    try {
      if (before != after) {
        follow(container, after);
      }
    } catch (Throwable failure) {
      Metrics.contain("listener.post", failure);
    }
  }

  void start(Context context) {
    Configuration conf = context.getConf();
    this.context = context;
    node = new Node(conf);
    bindings = new Bindings(node.gpus, node.journal());
    sampler = new UsageSampler(conf.getTrimmed(Settings.USAGE_COMMAND, ""), node.usageDirectory());
    Metrics.showFree(this::free);
    Metrics.showUsage(sampler::letter);
    Metrics.started(this);
    LOG.info("gpusage: shares of GPUs {}", node.gpus);
  }

  void enter(Container container) {
    long wanted = shareOf(container);
    boolean recovering = container.isRecovering();
    if (wanted > 0 && bindings != null) {
      if (recovering) {
        recall(container);
      } else if (!isOpportunistic(container)) {
        bind(container, wanted);
      }
    }
    prepare(container);
    if (wanted > 0 && !recovering) {
      boolean bound = bindings != null && bindings.has(id(container));
      Metrics.count(bound ? Metrics.Counter.GPUS_BOUND : Metrics.Counter.CONTAINERS_REFUSED);
    }
  }

  /** Release a container at its end; if it starts again, with its master's environment, prepare it again. */
  void follow(Container container, ContainerState after) {
    if (after == ContainerState.SCHEDULED) {
      boolean refused = bindings != null && shareOf(container) > 0 && !bindings.has(id(container));
      if (!refused) {
        prepare(container);
      }
    } else if (after == ContainerState.RUNNING && bindings != null) {
      bindings.of(id(container)).ifPresent(binding -> sampler.begin(id(container), binding, limits(container)));
    } else if (after == ContainerState.DONE && bindings != null) {
      sampler.end(id(container));
      if (container.cloneAndGetContainerStatus().getExitStatus() == Ending.MISSED) {
        lingering.add(id(container));
        releaseLingering();
      } else {
        bindings.release(id(container));
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
  private void bind(Container container, long wanted) {
    String id = id(container);
    for (Container other : context.getContainers().values()) {
      if (other.isRecovering() && shareOf(other) > 0) {
        recall(other);
      }
    }
    releaseLingering();
    bindings.keepOnly(known -> known.equals(id) || lives(known) || lingering.contains(known));
    bindings.bind(id, wanted);
  }

  /** Take up a container that an earlier NodeManager started: by the journal, else by its launch script, else as one that may be on any GPU. */
  private void recall(Container container) {
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
      Metrics.contain("launch script's reading", unreadable);
      return Optional.empty();
    }
  }

  /** Write to a container's environment which GPU it has. A container with a share and no GPU must not run. */
  private void prepare(Container container) {
    if (shareOf(container) == 0) {
      hideGpus(container);
      return;
    }
    Optional<Bindings.Binding> binding = bindings == null ? Optional.empty() : bindings.of(id(container));
    if (binding.isPresent()) {
      dress(container, binding.get());
    } else if (bindings == null) {
      refuse(container, "is given out, for gpusage could not start here");
    } else if (isOpportunistic(container)) {
      refuse(container, "goes to an opportunistic container; shares are for guaranteed ones");
    } else {
      refuse(container, "has room for share " + shareOf(container));
    }
  }

  /** Return the variables of a container with {@code share} of {@code gpu}, whose master lets it use {@code threads} percent of the threads and {@code capMib} MiB at most. */
  static Map<String, String> variables(Node node, String gpu, long share, long threads, long capMib) {
    Map<String, String> variables = new LinkedHashMap<>();
    variables.put("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    variables.put("CUDA_VISIBLE_DEVICES", gpu);
    variables.put("CUDA_MPS_PIPE_DIRECTORY", node.pipeDirectory(gpu));
    variables.put(SHARE, String.valueOf(share));
    variables.put("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", String.valueOf(Math.max(share, Math.min(threads, Settings.WHOLE_GPU))));
    long most = node.memoryMib * share / Settings.WHOLE_GPU;
    long cap = most == 0 || capMib > 0 && capMib < most ? capMib : most;
    if (cap > 0) {
      variables.put("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=" + cap + "M");
    }
    return Collections.unmodifiableMap(variables);
  }

  private void dress(Container container, Bindings.Binding binding) {
    Map<String, String> environment = container.getLaunchContext().getEnvironment();
    long threads = number(environment, THREADS);
    long capMib = number(environment, MEMORY_CAP);
    forgetMps(environment);
    environment.putAll(variables(node, binding.gpu, binding.share, threads, capMib));
    if ("1".equals(environment.get(PRIORITY))) {
      environment.put("CUDA_MPS_CLIENT_PRIORITY", "1");
    }
  }

  /** Return the variables that hold {@code container} to its share; none where it runs as another user, whose MPS server a client of ours would keep away. */
  private Map<String, String> limits(Container container) {
    Map<String, String> limits = new LinkedHashMap<>();
    if (node.runsAsOurselves()) {
      limits.putAll(container.getLaunchContext().getEnvironment());
      limits.keySet().removeIf(name -> !name.startsWith("CUDA_"));
    }
    return limits;
  }

  private static long number(Map<String, String> environment, String name) {
    String text = environment.getOrDefault(name, "");
    return text.matches("[0-9]{1,9}") ? Long.parseLong(text) : 0;
  }

  /** Keep a container without a share off the shared GPUs. We leave alone containers that have whole GPUs from YARN itself. */
  private void hideGpus(Container container) {
    if (node != null && !node.gpus.isEmpty() && amount(container, Settings.GPU_RESOURCE) == 0) {
      Map<String, String> environment = container.getLaunchContext().getEnvironment();
      forgetMps(environment);
      environment.put("CUDA_VISIBLE_DEVICES", "");
    }
  }

  private static void forgetMps(Map<String, String> environment) {
    environment.keySet().removeIf(name -> name.startsWith("CUDA_MPS_"));
  }

  private static void refuse(Container container, String why) {
    String command = "echo '" + REFUSAL + why + "' >&2; exit " + REFUSED_STATUS;
    container.getLaunchContext().setCommands(Collections.singletonList(command));
  }

  /** Refuse a container if our own code failed on it, unless it has no share. */
  private void refuseAfterAll(Container container) {
    try {
      if (shareOf(container) > 0) {
        refuse(container, "is given out, for gpusage failed here");
      }
    } catch (Throwable failure) {
      Metrics.contain("listener.pre", failure);
    }
  }

  private static boolean isOpportunistic(Container container) {
    return container.getContainerTokenIdentifier().getExecutionType() == ExecutionType.OPPORTUNISTIC;
  }

  private long shareOf(Container container) {
    return amount(container, share);
  }

  private static long amount(Container container, String type) {
    boolean known = ResourceUtils.getResourceTypeIndex().containsKey(type);
    return known ? container.getResource().getResourceValue(type) : 0;
  }

  private static String id(Container container) {
    return container.getContainerId().toString();
  }

  private boolean lives(String id) {
    try {
      Container container = context.getContainers().get(ContainerId.fromString(id));
      return container != null && container.getContainerState() != ContainerState.DONE;
    } catch (IllegalArgumentException noContainer) {
      return false;
    }
  }
}
