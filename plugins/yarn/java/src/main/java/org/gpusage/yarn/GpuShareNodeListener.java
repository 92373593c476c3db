// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerExitStatus;
import org.apache.hadoop.yarn.api.records.ExecutionType;
import org.apache.hadoop.yarn.server.nodemanager.ContainerStateTransitionListener;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerEvent;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerEventType;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerImpl;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerState;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.resourceplugin.ResourcePluginManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Binds each container that has a share to one GPU of its node, and says so in its environment, over whatever the user put there.
 *
 * <p>A listener and no {@code DevicePlugin}: that framework takes no runtime specification outside Docker, denies a device to all containers
 * but one, and does not say whose the devices are. What is bound stands in the NodeManager's own state store, as its own plugins' devices do.
 *
 * <p>It runs in the NodeManager's dispatcher, which ends the NodeManager at whatever is thrown, errors of linking after a jar was replaced
 * included: so its entry points keep these, too. Nothing here waits, but what is bound is written to the state store. A share that is not bound
 * does not run, whatever the reason: two containers would have one GPU. The switch ends no binding, because the share was given before.
 */
@InterfaceAudience.Public
@InterfaceStability.Evolving
public class GpuShareNodeListener implements ContainerStateTransitionListener {
  static final int REFUSED_STATUS = 64;

  /** How each of our refusals begins. It must hold no character that is special to bash. */
  static final String REFUSAL = "gpusage: no GPU of this node ";

  /** MPS's priority of a container's processes: 1 lets those of a job with a latency limit go first. */
  static final String PRIORITY = "GPUSAGE_CLIENT_PRIORITY";

  private static final Logger LOG = LoggerFactory.getLogger(GpuShareNodeListener.class);
  private static final String TROUBLE = "listener";

  private Context context;
  private String share = Settings.DEFAULT_SHARE_RESOURCE;
  private NodeSettings node;
  private Bindings bindings;
  private LostContainers lost;
  private UsageSampler sampler;

  @Override
  public void init(Context context) {
    try {
      share = Settings.shareResource(context.getConf());
      start(context);
      Metrics.clearTrouble(TROUBLE);
    } catch (Exception | LinkageError failure) {
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
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("listener.pre", failure);
      refuseOnFailure(container);
    }
  }

  @Override
  public void postTransition(ContainerImpl container, ContainerState before, ContainerState after, ContainerEvent event) {
    try {
      if (before != after) {
        stateChanged(container, after);
      }
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("listener.post", failure);
    }
  }

  void start(Context context) {
    Configuration conf = context.getConf();
    this.context = context;
    node = new NodeSettings(conf);
    node.readMemory();
    bindings = new Bindings(node.gpus);
    lost = new LostContainers(Paths.get("/proc"), !node.runsAsOurselves(), bindings::release);
    sampler = new UsageSampler(conf.getTrimmed(Settings.USAGE_COMMAND, ""), node.usageDirectory());
    Metrics.showFree(bindings::free);
    Metrics.showUsage(sampler::usageReport);
    Metrics.started(this);
    LOG.info("gpusage: shares of GPUs {}", node.gpus);
  }

  void containerInitialized(Container container) {
    if (shareOf(container) == 0) {
      hideGpus(container);
    } else if (bindings == null) {
      refuse(container, "is given out, for gpusage could not start here");
    } else if (container.isRecovering()) {
      recover(container);
      setGpuEnvironment(container);
    } else if (container.getContainerTokenIdentifier().getExecutionType() == ExecutionType.OPPORTUNISTIC) {
      refuse(container, "goes to an opportunistic container; shares are for guaranteed ones");
    } else {
      bind(container);
      setGpuEnvironment(container);
    }
  }

  /** Release a container at its end; if it starts again, with its master's environment, prepare it again. */
  void stateChanged(Container container, ContainerState after) {
    if (after == ContainerState.SCHEDULED && shareOf(container) == 0) {
      hideGpus(container);
      return;
    }
    Optional<Bindings.Binding> held = bindings == null ? Optional.empty() : bindings.of(id(container));
    if (after == ContainerState.SCHEDULED) {
      held.ifPresent(binding -> exposeGpu(container, binding));
    } else if (after == ContainerState.RUNNING) {
      held.ifPresent(binding -> sample(container, binding));
    } else if (after == ContainerState.DONE && bindings != null) {
      sampler.end(id(container));
      if (container.cloneAndGetContainerStatus().getExitStatus() == ContainerOutcome.MISSED) {
        lost.await(id(container));
      } else {
        bindings.release(id(container));
      }
    }
  }

  /** Bind a new container, once we know what each earlier one has. */
  private void bind(Container container) {
    for (Container other : context.getContainers().values()) {
      if (other.isRecovering() && shareOf(other) > 0) {
        recover(other);
      }
    }
    GpuRequest request = requestOf(container);
    bindings.bind(request.id, request.share, request.assignedGpus, request::mustBeApartFrom).ifPresent(binding -> store(container, binding));
  }

  /** Let the NodeManager keep what is bound, as it keeps the devices of its own plugins; what it cannot keep must not run. */
  private void store(Container container, Bindings.Binding binding) {
    try {
      context.getNMStateStore().storeAssignedResources(container, share, new ArrayList<Serializable>(binding.gpus));
    } catch (IOException unwritable) {
      bindings.release(id(container));
      Metrics.recordFailure("state store", unwritable);
    }
  }

  /** Take up a container that an earlier NodeManager started: as the state store has it, else as one that may be on any GPU. */
  private void recover(Container container) {
    String id = id(container);
    if (bindings.has(id) || container.cloneAndGetContainerStatus().getExitStatus() != ContainerExitStatus.INVALID) {
      return; // known, or at its end
    }
    List<String> gpus = container.getResourceMappings().getAssignedResources(share).stream().map(String::valueOf).collect(Collectors.toList());
    bindings.adopt(id, new Bindings.Binding(gpus, shareOf(container)));
    if (gpus.isEmpty()) {
      Metrics.count(Metrics.Counter.GPUS_UNKNOWN);
      LOG.warn("gpusage: the GPU of {} is not known, so that no container with a share starts here until it ends", id);
    }
  }

  /** Write to a container's environment which GPU it has. A container with a share and no GPU must not run. */
  private void setGpuEnvironment(Container container) {
    Optional<Bindings.Binding> binding = bindings.of(id(container));
    if (!binding.isPresent()) {
      refuse(container, "has room for share " + shareOf(container));
      return;
    }
    exposeGpu(container, binding.get());
    Metrics.count(Metrics.Counter.GPUS_BOUND);
  }

  /** Sample what a container does on its GPU; several whole GPUs are nobody else's, and are not sampled. */
  private void sample(Container container, Bindings.Binding binding) {
    if (binding.gpus.size() == 1) {
      sampler.begin(id(container), binding, limits(container, binding));
    }
  }

  /** Return the variables of a container that has {@code binding}, and may use {@code threads} percent of the GPU's threads if that is more than its share. */
  static Map<String, String> variables(NodeSettings node, Bindings.Binding binding, long threads) {
    Map<String, String> variables = new LinkedHashMap<>();
    variables.put("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    variables.put("CUDA_VISIBLE_DEVICES", binding.devices());
    variables.put("GPUSAGE_SHARE", String.valueOf(binding.share));
    if (binding.gpus.size() > 1) {
      return variables; // a daemon of MPS's serves one GPU; several are this container's alone
    }
    variables.put("CUDA_MPS_PIPE_DIRECTORY", node.pipeDirectory(binding.devices()));
    long percent = Math.max(binding.share, Math.min(threads, Settings.WHOLE_GPU));
    variables.put("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", String.valueOf(percent));
    long capMib = node.capMib(binding.devices(), binding.share);
    if (capMib > 0) {
      variables.put("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=" + capMib + "M");
    }
    return variables;
  }

  private void exposeGpu(Container container, Bindings.Binding binding) {
    Map<String, String> variables = requestOf(container).variables(node, binding);
    Map<String, String> environment = container.getLaunchContext().getEnvironment();
    removeMpsVariables(environment);
    environment.putAll(variables);
    if (variables.containsKey("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")) { // JAX and TensorFlow would take a part of the whole GPU, whose size they see
      environment.putIfAbsent("XLA_PYTHON_CLIENT_PREALLOCATE", "false");
      environment.putIfAbsent("TF_FORCE_GPU_ALLOW_GROWTH", "true");
    }
  }

  /**
   * Return what the sampler is told of a container: the variables that hold it to its share, and where it says that the GPU had no memory left.
   * Nothing where it runs as another user, whose MPS server a client of ours would keep away, and who may read less than we.
   */
  private Map<String, String> limits(Container container, Bindings.Binding binding) {
    Map<String, String> limits = new LinkedHashMap<>();
    if (node.runsAsOurselves()) {
      limits.putAll(requestOf(container).variables(node, binding));
      limits.keySet().removeIf(name -> !name.startsWith("CUDA_"));
      limits.put("GPUSAGE_OUT_OF_MEMORY", Rescue.OUT_OF_MEMORY.pattern());
      limits.put("GPUSAGE_LOGS", String.valueOf(container.getLogDir()));
    }
    return limits;
  }

  /** Keep a container without a share off the shared GPUs, unless another plugin gave it a device, whose variables it sets itself. */
  private void hideGpus(Container container) {
    if (node != null && node.hidesGpus() && !node.gpus.isEmpty() && !hasOtherDevices(container)) {
      Map<String, String> environment = container.getLaunchContext().getEnvironment();
      removeMpsVariables(environment);
      environment.put("CUDA_VISIBLE_DEVICES", "");
    }
  }

  private boolean hasOtherDevices(Container container) {
    ResourcePluginManager plugins = context.getResourcePluginManager();
    Set<String> names = new HashSet<>(Collections.singleton(Settings.GPU_RESOURCE)); // which a node may offer without a plugin
    names.addAll(plugins == null || plugins.getNameToPlugins() == null ? Collections.emptySet() : plugins.getNameToPlugins().keySet());
    names.remove("yarn.io/fpga"); // YARN's only other plugin of its own: who has one of its devices has no GPU
    return names.stream().anyMatch(name -> NodeGpus.amount(container.getResource(), name) > 0);
  }

  private static void removeMpsVariables(Map<String, String> environment) {
    environment.keySet().removeIf(name -> name.startsWith("CUDA_MPS_"));
  }

  /** Let a container end with our status after a while: YARN counts room here, and would send one after another of a master that gives up at a few failures. */
  private static void refuse(Container container, String why) {
    Metrics.count(Metrics.Counter.CONTAINERS_REFUSED);
    container.getLaunchContext().setCommands(Collections.singletonList("echo '" + REFUSAL + why + "' >&2; sleep 10; exit " + REFUSED_STATUS));
  }

  /** Refuse a container if our own code failed on it, unless it has no share. */
  private void refuseOnFailure(Container container) {
    try {
      if (shareOf(container) > 0) {
        refuse(container, "is given out, for gpusage failed here");
      }
    } catch (Exception | LinkageError failure) {
      Metrics.recordFailure("listener.pre", failure);
    }
  }

  private GpuRequest requestOf(Container container) {
    return new GpuRequest(container, shareOf(container), node);
  }

  private long shareOf(Container container) {
    return NodeGpus.amount(container.getResource(), share);
  }

  private static String id(Container container) {
    return container.getContainerId().toString();
  }
}
