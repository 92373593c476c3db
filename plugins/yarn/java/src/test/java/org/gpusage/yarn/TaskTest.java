// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class TaskTest {
  @TempDir Path folder;

  @Test
  void commandAndVariablesComeThroughBashAsTyped() throws Exception {
    String command = "printf '%s|' \"$X\" 'it'\"'\"'s' \"a\\\"b\" $((1+1)) `echo tick` {{ '$HOME' \"\n\" é; exit 3";
    Map<String, String> variables = new HashMap<>();
    variables.put("X", "' \" $HOME `id` \\ \n {{x}} <LOG_DIR>");
    variables.put("CUDA_VISIBLE_DEVICES", "7");
    variables.put("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100");
    variables.put("not a name; touch x", "1");
    Plan plan = Plan.parse(PlanTest.encoded("{'v':'1','share':'40','threads':'80','priority':'1'}"));
    ContainerLaunchContext launch = new Task(1, plan).launch(command, variables, Collections.emptyMap());
    assertEquals("1", launch.getEnvironment().get(GpuShareNodeListener.PRIORITY));
    String pasted = launch.getCommands().get(0).replace("<LOG_DIR>", folder.toString());
    Process process =
        new ProcessBuilder("bash", "-c", "exec /bin/bash -c \"" + pasted + "\"").directory(folder.toFile()).start();
    assertEquals(3, process.waitFor());
    String output = new String(Files.readAllBytes(folder.resolve("stdout")), "UTF-8");
    assertEquals("' \" $HOME `id` \\ \n {{x}} <LOG_DIR>|it's|a\"b|2|tick|{{|$HOME|\n|é|", output);
    String script = new String(Files.readAllBytes(folder.resolve(".gpusage-command.sh")), "UTF-8");
    assertEquals(false, script.contains("CUDA_"));
    assertEquals("", drained(process.getErrorStream()));
  }

  private static String drained(InputStream stream) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    for (int next = stream.read(); next >= 0; next = stream.read()) {
      bytes.write(next);
    }
    return bytes.toString("UTF-8");
  }
}
