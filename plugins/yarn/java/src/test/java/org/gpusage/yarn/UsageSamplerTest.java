// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class UsageSamplerTest {
  private static final Bindings.Binding HALF = new Bindings.Binding(Collections.singletonList("GPU-1"), 50);

  private static final Map<String, String> LIMITS = Collections.singletonMap("CUDA_MPS_PIPE_DIRECTORY", "/p");

  @TempDir Path folder;

  @Test
  void theProgramRunsFromAContainersStartToItsEndAndItsLetterIsShown() throws Exception {
    Path program = program("trap 'echo \"$1 $2 $3 $CUDA_MPS_PIPE_DIRECTORY\" >\"$4/new\"; mv \"$4/new\" \"$4/letter\"; exit' TERM; : >\"$4/begun\"; while :; do sleep 0.05; done");
    UsageSampler sampler = new UsageSampler("sh " + program, folder);
    sampler.begin("container_1", HALF, LIMITS);
    await(folder.resolve("begun"));
    assertEquals("", sampler.usageReport());
    sampler.end("container_1");
    await(folder.resolve("letter"));
    assertEquals("container_1 GPU-1 50 /p\n", sampler.usageReport());
    sampler.end("container_1"); // what is not known is no error
  }

  @Test
  void withoutACommandNothingRunsAndNothingIsShown() throws Exception {
    write(folder.resolve("letter"), "of somebody");
    UsageSampler sampler = new UsageSampler("", folder);
    sampler.begin("container_1", HALF, LIMITS);
    sampler.end("container_1");
    assertEquals("", sampler.usageReport());
  }

  @Test
  void aProgramThatIsNotThereOrAHugeLetterHurtsNobody() throws Exception {
    UsageSampler sampler = new UsageSampler(folder.resolve("gone").toString(), folder);
    sampler.begin("container_1", HALF, LIMITS);
    sampler.end("container_1");
    write(folder.resolve("letter"), new String(new char[9000]).replace('\0', 'a'));
    assertEquals("", sampler.usageReport());
  }

  private Path program(String script) throws Exception {
    return write(folder.resolve("program"), script + "\n");
  }

  private static Path write(Path file, String text) throws Exception {
    return Files.write(file, text.getBytes(StandardCharsets.UTF_8));
  }

  private static void await(Path file) throws Exception {
    for (int round = 0; round < 400 && !Files.exists(file); round++) {
      Thread.sleep(25);
    }
    assertTrue(Files.exists(file), file + " must be there");
  }
}
