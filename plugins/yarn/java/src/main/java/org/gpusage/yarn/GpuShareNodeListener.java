package org.gpusage.yarn;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
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
 * <p>It runs in the NodeManager's dispatcher, whose end would be an exception's: nothing here waits, and nothing leaves.
 */
public class GpuShareNodeListener implements ContainerStateTransitionListener {
  static final int REFUSED_STATUS = 64;
  static final String REFUSAL = "gpusage: no GPU of this node has room for share";
  static final String MEMORY_CAP = "GPUSAGE_MEMORY_CAP_MIB";

  private static final Logger LOG = LoggerFactory.getLogger(GpuShareNodeListener.class);

  private Context context;
  private Switch off;
  private String share;
  private Node node;
  private Bindings bindings;

  @Override
  public void init(Context context) {
    try {
      start(context);
    } catch (Throwable failure) {
      bindings = null;
      Metrics.contain("listener.init", failure);
    }
  }

  @Override
  public void preTransition(ContainerImpl container, ContainerState before, ContainerEvent event) {
    try {
      if (bindings != null && event.getType() == ContainerEventType.INIT_CONTAINER) {
        enter(container);
      }
    } catch (Throwable failure) {
      Metrics.contain("listener.pre", failure);
    }
  }

  @Override
  public void postTransition(
      ContainerImpl container, ContainerState before, ContainerState after, ContainerEvent event) {
    try {
      if (bindings != null && before != after) {
        follow(container, after);
      }
    } catch (Throwable failure) {
      Metrics.contain("listener.post", failure);
    }
  }

  void start(Context context) {
    Configuration conf = context.getConf();
    this.context = context;
    off = Settings.offSwitch(conf);
    share = Settings.shareResource(conf);
    node = new Node(conf);
    bindings = new Bindings(node.gpus, node.journal());
    Metrics.started(this);
    LOG.info("gpusage: shares of GPUs {}", node.gpus);
  }

  void enter(Container container) {
    long wanted = shareOf(container);
    if (wanted == 0 || off.isOff()) {
      return;
    }
    String id = container.getContainerId().toString();
    if (!container.isRecovering()) {
      bindings.keepOnly(known -> known.equals(id) || lives(known));
    }
    Optional<String> gpu = bindings.bind(id, wanted);
    if (gpu.isPresent()) {
      Metrics.count(Metrics.Counter.GPUS_BOUND);
      dress(container, gpu.get(), wanted);
    } else if (!container.isRecovering()) {
      Metrics.count(Metrics.Counter.CONTAINERS_REFUSED);
      refuse(container.getLaunchContext(), wanted);
    } else {
      LOG.warn("gpusage: {} has a share of {} that no GPU here has room for; it goes on", id, wanted);
    }
  }

  /** Release at the end; say the GPU once more where a container is to start anew, with an environment of its master's. */
  void follow(Container container, ContainerState after) {
    String id = container.getContainerId().toString();
    if (after == ContainerState.DONE) {
      bindings.release(id);
    } else if (after == ContainerState.SCHEDULED) {
      bindings.gpuOf(id).ifPresent(gpu -> dress(container, gpu, shareOf(container)));
    }
  }

  /** Return the variables of a container with {@code share} of {@code gpu}, whose master would have it use {@code capMib} at most. */
  static Map<String, String> variables(Node node, String gpu, long share, long capMib) {
    Map<String, String> variables = new LinkedHashMap<>();
    variables.put("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    variables.put("CUDA_VISIBLE_DEVICES", gpu);
    variables.put("CUDA_MPS_PIPE_DIRECTORY", node.pipeDirectory(gpu));
    variables.put("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", String.valueOf(share));
    long most = node.memoryMib * share / Settings.WHOLE_GPU;
    long cap = most == 0 || capMib > 0 && capMib < most ? capMib : most;
    if (cap > 0) {
      variables.put("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=" + cap + "M");
    }
    return Collections.unmodifiableMap(variables);
  }

  private void dress(Container container, String gpu, long share) {
    Map<String, String> environment = container.getLaunchContext().getEnvironment();
    String cap = environment.getOrDefault(MEMORY_CAP, "");
    environment.keySet().removeIf(name -> name.startsWith("CUDA_MPS_"));
    environment.putAll(variables(node, gpu, share, cap.matches("[0-9]{1,9}") ? Long.parseLong(cap) : 0));
  }

  private static void refuse(ContainerLaunchContext launch, long share) {
    String command = "echo '" + REFUSAL + " " + share + "' >&2; exit " + REFUSED_STATUS;
    launch.setCommands(Collections.singletonList(command));
  }

  private long shareOf(Container container) {
    boolean known = ResourceUtils.getResourceTypeIndex().containsKey(share);
    return known ? container.getResource().getResourceValue(share) : 0;
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
