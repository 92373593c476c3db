// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.server.api.ApplicationInitializationContext;
import org.apache.hadoop.yarn.server.api.ApplicationTerminationContext;
import org.apache.hadoop.yarn.server.api.AuxiliaryService;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps one MPS control daemon per shared GPU. Calls an executable as {@code COMMAND start|stop|status GPU}.
 *
 * <p>The executable finds CUDA_VISIBLE_DEVICES, CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY in its environment, and exits with 0 if the
 * daemon is in the state asked for; {@code start} of a running daemon is no error. This service makes all calls in a thread of its own.
 */
@InterfaceAudience.Public
@InterfaceStability.Evolving
public class MpsAuxiliaryService extends AuxiliaryService {
  private static final Logger LOG = LoggerFactory.getLogger(MpsAuxiliaryService.class);
  private static final int CALL_LIMIT_S = 20;

  private ScheduledExecutorService keeper;
  private NodeSettings node;
  private String command;

  public MpsAuxiliaryService() {
    super("gpusage_mps");
  }

  @Override
  protected void serviceStart() throws Exception {
    super.serviceStart();
    try {
      begin(getConfig());
    } catch (Exception failure) { // the NodeManager would not start
      Metrics.recordFailure("mps.start", failure);
    }
  }

  @Override
  protected void serviceStop() throws Exception {
    try {
      end();
    } catch (Exception failure) { // its other services still have to stop
      Metrics.recordFailure("mps.stop", failure);
    }
    super.serviceStop();
  }

  @Override
  public void initializeApplication(ApplicationInitializationContext application) {
    // Daemons are a node's, not an application's.
  }

  @Override
  public void stopApplication(ApplicationTerminationContext application) {
    // Daemons are a node's, not an application's.
  }

  @Override
  public ByteBuffer getMetaData() {
    return ByteBuffer.allocate(0);
  }

  void begin(Configuration conf) {
    node = new NodeSettings(conf);
    command = conf.getTrimmed(Settings.MPS_COMMAND, "/usr/libexec/gpusage/gpusage-mps");
    keeper = Executors.newSingleThreadScheduledExecutor(DaemonThreads.named("gpusage-mps"));
    Metrics.started(this);
    keeper.scheduleWithFixedDelay(this::keep, 0, Math.max(1, conf.getLong(Settings.MPS_CHECK_S, 10)), TimeUnit.SECONDS);
  }

  /** Stop the daemons as well, unless containers stay behind that use them. */
  void end() throws Exception {
    if (keeper == null) {
      return;
    }
    keeper.shutdownNow();
    keeper.awaitTermination(CALL_LIMIT_S, TimeUnit.SECONDS);
    if (!node.keepsContainers()) {
      for (String gpu : node.gpus) {
        call("stop", gpu);
      }
    }
  }

  private void keep() {
    try {
      boolean good = true;
      for (String gpu : node.gpus) {
        good &= call("status", gpu) == 0 || start(gpu);
      }
      if (good) {
        Metrics.clearTrouble("mps");
      }
    } catch (InterruptedException ending) {
      Thread.currentThread().interrupt();
    } catch (Exception failure) { // else the keeper would not run again
      Metrics.recordFailure("mps.keep", failure);
      Metrics.trouble("mps", failure.toString());
    }
  }

  private boolean start(String gpu) throws IOException, InterruptedException {
    int status = call("start", gpu);
    Metrics.count(Metrics.Counter.MPS_STARTED);
    LOG.info("gpusage: MPS control daemon of GPU {} started: exit status {}", gpu, status);
    if (status != 0) {
      Metrics.trouble("mps", command + " start " + gpu + " ended with " + status);
    }
    return status == 0;
  }

  private int call(String verb, String gpu) throws IOException, InterruptedException {
    ProcessBuilder builder = new ProcessBuilder(command, verb, gpu);
    Map<String, String> environment = builder.environment();
    environment.put("CUDA_VISIBLE_DEVICES", gpu);
    environment.put("CUDA_MPS_PIPE_DIRECTORY", node.pipeDirectory(gpu));
    environment.put("CUDA_MPS_LOG_DIRECTORY", node.logDirectory(gpu));
    if (getConfig().getBoolean(Settings.ACROSS_USERS, false)) {
      environment.put("GPUSAGE_ACROSS_USERS", "yes");
    }
    File nowhere = new File("/dev/null");
    Process process = builder.redirectInput(nowhere).redirectErrorStream(true).redirectOutput(nowhere).start();
    try {
      if (process.waitFor(CALL_LIMIT_S, TimeUnit.SECONDS)) {
        return process.exitValue();
      }
    } finally {
      process.destroyForcibly(); // also if the NodeManager ends meanwhile: no start may outlive the stop that follows
    }
    throw new IOException(command + " " + verb + " " + gpu + " must end within " + CALL_LIMIT_S + " s; it was ended");
  }
}
