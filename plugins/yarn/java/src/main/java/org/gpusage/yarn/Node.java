package org.gpusage.yarn;

import java.io.File;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/** What this node's yarn-site.xml says of its shared GPUs. */
final class Node {
  /** Names for CUDA_VISIBLE_DEVICES: UUIDs where an MPS daemon serves them, for it numbers its GPUs anew; else indices. */
  final List<String> gpus;

  /** Of one GPU; 0 where not said. */
  final int memoryMib;

  private final Path mpsDirectory;
  private final Configuration conf;

  Node(Configuration conf) {
    this.conf = conf;
    String[] named = conf.getTrimmedStrings(Settings.NODE_GPUS);
    gpus = named.length > 0 ? Collections.unmodifiableList(Arrays.asList(named)) : indices(conf);
    for (String gpu : gpus) {
      if (!gpu.matches("[0-9a-zA-Z-]{1,80}")) {
        throw new IllegalArgumentException(Settings.NODE_GPUS + " must be UUIDs or indices; got " + gpu);
      }
    }
    memoryMib = conf.getInt(Settings.NODE_MEMORY_MIB, 0);
    mpsDirectory = Paths.get(conf.getTrimmed(Settings.MPS_DIRECTORY, "/run/gpusage/mps"));
  }

  String pipeDirectory(String gpu) {
    return mpsDirectory.resolve(gpu).resolve("pipe").toString();
  }

  String logDirectory(String gpu) {
    return mpsDirectory.resolve(gpu).resolve("log").toString();
  }

  /** Return where bindings are kept; null where no container outlives the NodeManager. */
  Path journal() {
    String named = conf.getTrimmed(Settings.NODE_JOURNAL);
    if (named != null) {
      return Paths.get(named);
    }
    String recovery = conf.getTrimmed(YarnConfiguration.NM_RECOVERY_DIR);
    return keepsContainers() && recovery != null ? new File(recovery, "gpusage-bindings").toPath() : null;
  }

  boolean keepsContainers() {
    return conf.getBoolean(YarnConfiguration.NM_RECOVERY_ENABLED, false);
  }

  private static List<String> indices(Configuration conf) {
    long capacity = conf.getLong(YarnConfiguration.NM_RESOURCES_PREFIX + Settings.shareResource(conf), 0);
    List<String> indices = new ArrayList<>();
    for (int index = 0; index < capacity / Settings.WHOLE_GPU; index++) {
      indices.add(String.valueOf(index));
    }
    return indices;
  }
}
