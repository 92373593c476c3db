// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceContext;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.Container;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerState;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;

/** Our classes with a fault inside each entry point; the tests on a real cluster name them in its configuration. */
public final class Faults {
  private Faults() {}

  /** Return an exception, for what YARN handles errors of. */
  static RuntimeException fault(String place) {
    return new IllegalStateException("fault of a test in " + place);
  }

  /** Return an error as after a jar was replaced under a running daemon, for what would end the daemon. */
  static Error linkageFault(String place) {
    return new NoClassDefFoundError("fault of a test in " + place);
  }

  /** Fails when it is configured. */
  public static class CalculatorSettings extends GpuShareResourceCalculator {
    @Override
    void configure(Configuration conf) {
      throw linkageFault("the calculator's settings");
    }
  }

  /** Fails at every request. */
  public static class Calculator extends GpuShareResourceCalculator {
    @Override
    Resource snapped(Resource stock, Resource most) {
      throw linkageFault("the calculator");
    }
  }

  /** Fails wherever it looks for room, and where it binds. */
  public static class Allocator<N extends SchedulerNode> extends GpuSharePlacementAllocator<N> {
    @Override
    List<Integer> choose(SchedulerNode node, long requested) {
      throw linkageFault("the allocator");
    }
  }

  /** Fails in initialize. */
  public static class RuleStart extends GpuSharePlacementRule {
    @Override
    void start(ResourceScheduler scheduler) {
      throw fault("rule.initialize");
    }
  }

  /** Fails at every submission. */
  public static class RulePlace extends GpuSharePlacementRule {
    @Override
    void place(ApplicationSubmissionContext application, String user) {
      throw fault("rule.place");
    }
  }

  /** Fails in init. */
  public static class ProcessorStart extends GpuShareProcessor {
    @Override
    void start(ApplicationMasterServiceContext context) {
      throw fault("processor.init");
    }
  }

  /** Fails when a master registers. */
  public static class ProcessorRegister extends GpuShareProcessor {
    @Override
    void begin(ApplicationAttemptId attempt) {
      throw fault("processor.register");
    }
  }

  /** Fails at every heartbeat, before and after the scheduler has answered. */
  public static class ProcessorAllocate extends GpuShareProcessor {
    @Override
    void convert(RequestConverter converter, ApplicationAttemptId attempt, AllocateRequest request) {
      throw fault("processor.allocate");
    }

    @Override
    void restore(RequestConverter converter, AllocateResponse response) {
      throw fault("processor.allocate's answer");
    }
  }

  /** Fails when a master ends. */
  public static class ProcessorFinish extends GpuShareProcessor {
    @Override
    void end(ApplicationAttemptId attempt) {
      throw fault("processor.finish");
    }
  }

  /** Fails in init. */
  public static class ListenerInit extends GpuShareNodeListener {
    @Override
    void start(Context context) {
      throw linkageFault("listener.init");
    }
  }

  /** Fails before a container begins. */
  public static class ListenerPre extends GpuShareNodeListener {
    @Override
    void containerInitialized(Container container) {
      throw linkageFault("listener.pre");
    }
  }

  /** Fails after each step of a container. */
  public static class ListenerPost extends GpuShareNodeListener {
    @Override
    void stateChanged(Container container, ContainerState after) {
      throw linkageFault("listener.post");
    }
  }

  /** Fails when it starts and when it stops. */
  public static class Mps extends MpsAuxiliaryService {
    @Override
    void begin(Configuration conf) {
      throw fault("mps.start");
    }

    @Override
    void end() {
      throw fault("mps.stop");
    }
  }
}
