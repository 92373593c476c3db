// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.LocalResource;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;

/** One run of the user's command, in one container after another until one of them ends by itself. */
final class Task {
  private static final String SCRIPT = ".gpusage-command.sh";

  /** The task's number, and also its number among the application's requests, which tells that a container is for this task. */
  final long number;

  /** What its next container is asked for with. */
  Plan plan;

  ContainerRequest request;
  Container container;
  boolean done;
  int losses;

  Task(long number, Plan plan) {
    this.number = number;
    this.plan = plan;
  }

  boolean runsIn(ContainerId id) {
    return container != null && container.getId().equals(id);
  }

  /** Return how its container is to be started; text that YARN pastes unquoted into a shell is base64. */
  ContainerLaunchContext launch(String command, Map<String, String> variables, Map<String, LocalResource> files) {
    Map<String, String> environment = new HashMap<>();
    environment.put("GPUSAGE_CONTAINER", String.valueOf(number - 1));
    environment.put("GPUSAGE_CONTAINERS", String.valueOf(plan.containers));
    environment.put(GpuShareNodeListener.PRIORITY, String.valueOf(plan.priority));
    String start =
        "printf %s " + FlatJson.toBase64(script(command, variables)) + " | base64 -d >" + SCRIPT
            + " && exec bash " + SCRIPT + " 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr";
    return ContainerLaunchContext.newInstance(
        files, environment, Collections.singletonList(start), null, null, null);
  }

  /** Return the file that bash runs: the user's variables, save those by which a share is kept, then the command as typed. */
  static String script(String command, Map<String, String> variables) {
    StringBuilder script = new StringBuilder();
    variables.forEach(
        (name, value) -> {
          if (name.matches("[a-zA-Z_][a-zA-Z0-9_]*") && !name.matches("CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_MPS_.*")) {
            script.append("export ").append(name).append("='").append(value.replace("'", "'\\''")).append("'\n");
          }
        });
    return script.append(command).append('\n').toString();
  }
}
