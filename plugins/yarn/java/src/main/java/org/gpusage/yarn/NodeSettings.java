// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/** What this node's yarn-site.xml says of its shared GPUs. */
final class NodeSettings {
  /** A GPU's name: an index, or a UUID. */
  static final String NAME = "(?:0|[1-9][0-9]{0,3}|[a-zA-Z][0-9a-zA-Z-]{0,79})";

  private static final String INDEX = "index";

  /** Names for CUDA_VISIBLE_DEVICES: UUIDs if an MPS daemon serves the GPUs, because it renumbers them; else indices. */
  final List<String> gpus;

  /** Of one GPU, as the site says it; 0 where nvidia-smi is to say it. */
  private final int memoryMib;

  private GpuMemory memory = new GpuMemory();
  private final Path mpsDirectory;
  private final Configuration conf;

  NodeSettings(Configuration conf) {
    this.conf = conf;
    String[] named = conf.getTrimmedStrings(Settings.NODE_GPUS);
    gpus = named.length > 0 ? Collections.unmodifiableList(Arrays.asList(named)) : indices(conf);
    for (String gpu : gpus) {
      if (!gpu.matches(NAME)) {
        throw new IllegalArgumentException(Settings.NODE_GPUS + " must be UUIDs or indices; got " + gpu);
      }
      if (gpus.stream().filter(other -> kind(other).equals(kind(gpu)) && mayBeSame(other, gpu)).count() > 1) {
        throw new IllegalArgumentException(Settings.NODE_GPUS + " must name each GPU once; got " + gpu + " more than once");
      }
    }
    memoryMib = conf.getInt(Settings.NODE_MEMORY_MIB, 0);
    mpsDirectory = Paths.get(conf.getTrimmed(Settings.MPS_DIRECTORY, "/run/gpusage-mps"));
  }

  String pipeDirectory(String gpu) {
    return mpsDirectory.resolve(gpu).resolve("pipe").toString();
  }

  String logDirectory(String gpu) {
    return mpsDirectory.resolve(gpu).resolve("log").toString();
  }

  /** Ask the driver how much memory the GPUs have, unless the site has said it. */
  void readMemory() {
    if (memoryMib == 0 && !gpus.isEmpty()) {
      memory = GpuMemory.ofThisNode();
    }
  }

  /** Return the part of {@code gpu}'s memory that is a container's with {@code share} of it, in MiB; 0 if its memory is not known. */
  long capMib(String gpu, long share) {
    long mib = memoryMib > 0 ? memoryMib : memory.mib(gpu);
    return share < Settings.WHOLE_GPU ? GpuMemory.part(mib, share) : 0;
  }

  /** Return whether a container without a share sees none of the GPUs here. */
  boolean hidesGpus() {
    return conf.getBoolean(Settings.HIDE_GPUS, true);
  }

  /** Return where the usage of containers is kept, in a folder that nobody but this NodeManager's user writes to. */
  Path usageDirectory() {
    String named = conf.getTrimmed(Settings.USAGE_DIRECTORY);
    return named != null ? Paths.get(named) : Paths.get("/tmp", "gpusage-usage-" + System.getProperty("user.name"));
  }

  /** Return whether containers run as the NodeManager's own user. */
  boolean runsAsOurselves() {
    return !conf.getTrimmed(YarnConfiguration.NM_CONTAINER_EXECUTOR, "").endsWith("LinuxContainerExecutor");
  }

  boolean keepsContainers() {
    return conf.getBoolean(YarnConfiguration.NM_RECOVERY_ENABLED, false);
  }

  /** Return whether two names may stand for one GPU: each of its own kind, or one the beginning of the other's UUID, which CUDA takes as well. */
  static boolean mayBeSame(String name, String other) {
    if (!kind(name).equals(kind(other))) {
      return true;
    }
    return kind(name).equals(INDEX) ? name.equals(other) : name.startsWith(other) || other.startsWith(name);
  }

  /** Return what {@code name} is: an index, or a UUID of a GPU or of a part of one. */
  private static String kind(String name) {
    return Character.isDigit(name.charAt(0)) ? INDEX : name.substring(0, name.indexOf('-') + 1);
  }

  private static List<String> indices(Configuration conf) {
    long capacity = conf.getLong(YarnConfiguration.NM_RESOURCES_PREFIX + Settings.shareResource(conf), 0);
    List<String> indices = new ArrayList<>();
    for (int index = 0; index < capacity / Settings.WHOLE_GPU || index == 0 && capacity > 0; index++) {
      indices.add(String.valueOf(index));
    }
    return indices;
  }
}
