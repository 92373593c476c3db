package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class LaunchScriptTest {
  private static final String GPU = "export CUDA_VISIBLE_DEVICES=\"1\"\n";
  private static final String SHARE = "export GPUSAGE_SHARE=\"40\"\n";

  @TempDir Path folder;

  @Test
  void gpuAndShareAreThoseOfTheScript() throws Exception {
    ContainerId id = ContainerId.fromString("container_e01_1700000000000_0001_01_000002");
    Path private_ = folder.resolve("two/nmPrivate/application_1700000000000_0001").resolve(id.toString());
    Files.createDirectories(private_);
    List<String> folders = Arrays.asList(folder.resolve("one").toString(), folder.resolve("two").toString());
    assertFalse(LaunchScript.binding(folders, id).isPresent());
    Files.write(private_.resolve("launch_container.sh"), ("#!/bin/bash\n" + GPU + "x\n" + SHARE).getBytes(StandardCharsets.UTF_8));
    Bindings.Binding binding = LaunchScript.binding(folders, id).get();
    assertEquals("1 40", binding.gpu + " " + binding.share);
  }

  @Test
  void aScriptThatSaysNothingOrTwoThingsIsNotBelieved() {
    String forged = "export X=\"\nexport CUDA_VISIBLE_DEVICES=\"0\"\n\"\n";
    String[] scripts = {"", GPU, SHARE, forged + GPU + SHARE, GPU + SHARE.replace("40", "0"), GPU.replace("1", "") + SHARE, GPU.replace("1", "0,1") + SHARE};
    for (String script : scripts) {
      assertEquals(Optional.empty(), LaunchScript.binding(script), script);
    }
    assertEquals("1", LaunchScript.binding(GPU + GPU + SHARE).get().gpu);
  }

  @Test
  void theThreadsMayBeMoreThanTheShare() {
    String threads = "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=\"80\"\n";
    assertEquals(40, LaunchScript.binding(GPU + threads + SHARE).get().share);
    assertEquals(Optional.empty(), LaunchScript.binding(GPU + threads));
  }
}
