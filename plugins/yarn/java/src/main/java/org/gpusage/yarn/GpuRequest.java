package org.gpusage.yarn;

import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;

/**
 * What a container is to get of this node's GPUs, read from it once.
 *
 * <p>Whoever waits for room must not ask the container later: the NodeManager's dispatcher holds the container's lock while it takes ours.
 */
final class GpuRequest {
  final String id;
  final long share;

  /** The GPUs of this node that the ResourceManager bound the container to; none if it did not. */
  final List<String> assignedGpus;

  private final long threads;
  private final boolean first;

  GpuRequest(Container container, long share, NodeSettings node) {
    id = container.getContainerId().toString();
    this.share = share;
    assignedGpus =
        NodeGpus.numbers(container.getContainerTokenIdentifier().getAllcationTags()).stream()
            .filter(number -> number < node.gpus.size())
            .map(node.gpus::get)
            .collect(Collectors.toList());
    threads = NodeGpus.threads(container.getContainerTokenIdentifier().getAllcationTags());
    first = "1".equals(container.getLaunchContext().getEnvironment().get(GpuShareNodeListener.PRIORITY));
  }

  /** Return the container's variables if it has {@code binding}. */
  Map<String, String> variables(NodeSettings node, Bindings.Binding binding) {
    Map<String, String> variables = GpuShareNodeListener.variables(node, binding, threads);
    if (first) {
      variables.put("CUDA_MPS_CLIENT_PRIORITY", "1");
    }
    return variables;
  }
}
