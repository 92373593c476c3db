// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;

/** What a container is to get of this node's GPUs. */
final class GpuRequest {
  final String id;
  final long share;

  /** The GPUs of this node that the ResourceManager bound the container to; none if it did not. */
  final List<String> assignedGpus;

  private final long threads;
  private final boolean apart;
  private final boolean first;

  GpuRequest(Container container, long share, NodeSettings node) {
    id = container.getContainerId().toString();
    this.share = share;
    Collection<String> tags = container.getContainerTokenIdentifier().getAllcationTags();
    assignedGpus = NodeGpus.numbers(tags).stream().filter(number -> number < node.gpus.size()).map(node.gpus::get).collect(Collectors.toList());
    threads = NodeGpus.threads(tags);
    apart = NodeGpus.isApart(tags);
    first = "1".equals(container.getLaunchContext().getEnvironment().get(GpuShareNodeListener.PRIORITY));
  }

  /** Return whether the two must not be on one GPU: containers of one training. */
  boolean mustBeApartFrom(String other) {
    return apart && application(other).equals(application(id));
  }

  private static ApplicationId application(String container) {
    return ContainerId.fromString(container).getApplicationAttemptId().getApplicationId();
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
