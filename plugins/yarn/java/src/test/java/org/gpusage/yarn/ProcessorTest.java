// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.gpusage.yarn.GpuShareResourceCalculatorTest.vector;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceContext;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceProcessor;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterResponse;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.ResourceSizing;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMNodeLabelsManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.util.Records;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ProcessorTest {
  private static final Resource REQUESTED = vector(64, 1, 1, 0);
  private static final Resource ALLOCATED = vector(64, 1, 0, 100);
  private static final ApplicationId APPLICATION = ApplicationId.newInstance(1, 1);

  @TempDir Path folder;

  @Test
  void aWholeGpuWithoutAPlanIsAShareOnlyWhereTheSiteSaysSo() throws Exception {
    assertEquals(Arrays.asList(ALLOCATED, vector(64, 1, 1, 100)), resourcesSeenByYarnAndMaster(processor(true)));
    assertEquals(Arrays.asList(REQUESTED, ALLOCATED), resourcesSeenByYarnAndMaster(processor(false)));
  }

  @Test
  void theSwitchTakesNobodyAWholeGpu() throws Exception {
    Files.createFile(folder.resolve("off"));
    assertEquals(Arrays.asList(ALLOCATED, vector(64, 1, 1, 100)), resourcesSeenByYarnAndMaster(processor(true)));
  }

  @Test
  void aMasterIsToldHowManyGpusAContainerMayHaveWhereNodesOfferThemAsShares() throws Exception {
    RegisterApplicationMasterResponse response = Records.newRecord(RegisterApplicationMasterResponse.class);
    response.setMaximumResourceCapability(vector(8192, 32, 0, 200));
    processor(true).registerApplicationMaster(ApplicationAttemptId.newInstance(APPLICATION, 1), null, response);
    assertEquals(vector(8192, 32, 2, 200), response.getMaximumResourceCapability());
    response.setMaximumResourceCapability(vector(8192, 32, 1, 200)); // of whole nodes beside them
    processor(true).registerApplicationMaster(ApplicationAttemptId.newInstance(APPLICATION, 1), null, response);
    assertEquals(vector(8192, 32, 2, 200), response.getMaximumResourceCapability());
    response.setMaximumResourceCapability(vector(8192, 32, 4, 200));
    processor(true).registerApplicationMaster(ApplicationAttemptId.newInstance(APPLICATION, 1), null, response);
    assertEquals(vector(8192, 32, 4, 200), response.getMaximumResourceCapability());
    response.setMaximumResourceCapability(vector(8192, 32, 0, 200));
    processor(false).registerApplicationMaster(ApplicationAttemptId.newInstance(APPLICATION, 1), null, response);
    assertEquals(vector(8192, 32, 0, 200), response.getMaximumResourceCapability());
    WholeGpuLabelsTest.withMost(1);
    try {
      processor(true).registerApplicationMaster(ApplicationAttemptId.newInstance(APPLICATION, 1), null, response);
      assertEquals(vector(8192, 32, 1, 200), response.getMaximumResourceCapability(), "the site allows no more");
    } finally {
      WholeGpuLabelsTest.withMost(Long.MAX_VALUE);
    }
  }

  @Test
  void aRequestWithPlacementConstraintsGetsSharesForItsGpusOrIsRefused() throws Exception {
    AllocateRequest request = constrained(1, "spark");
    GpuShareProcessor processor = processor(true);
    AllocateResponse response = Records.newRecord(AllocateResponse.class);
    processor.allocate(ApplicationAttemptId.newInstance(APPLICATION, 1), request, response);
    SchedulingRequest changed = request.getSchedulingRequests().get(0);
    assertEquals(ALLOCATED, changed.getResourceSizing().getResources());
    assertEquals(3, changed.getResourceSizing().getNumAllocations());
    assertEquals(Collections.singleton("spark"), changed.getAllocationTags());
    assertEquals(vector(64, 1, 1, 100), response.getAllocatedContainers().get(0).getResource());
    for (AllocateRequest refused : Arrays.asList(constrained(2, "spark"), constrained(1, "gpusage-gpu-0"))) {
      assertThrows(
          InvalidResourceRequestException.class, () -> processor.allocate(ApplicationAttemptId.newInstance(APPLICATION, 1), refused, response));
    }
    AllocateRequest both = constrained(2, "spark");
    ResourceRequest moving = RequestConverterTest.ask(64, 1, 0, 1);
    both.setAskList(Collections.singletonList(moving));
    assertThrows(InvalidResourceRequestException.class, () -> processor.allocate(ApplicationAttemptId.newInstance(APPLICATION, 1), both, response));
    assertSame(moving, both.getAskList().get(0), "nothing of it is thought to have reached YARN");
    AllocateRequest untouched = constrained(1, "spark");
    processor(false).allocate(ApplicationAttemptId.newInstance(APPLICATION, 1), untouched, response);
    assertEquals(REQUESTED, untouched.getSchedulingRequests().get(0).getResourceSizing().getResources());
  }

  private static AllocateRequest constrained(long gpus, String tag) {
    SchedulingRequest ask =
        SchedulingRequest.newBuilder()
            .allocationRequestId(7)
            .priority(Priority.newInstance(1))
            .allocationTags(Collections.singleton(tag))
            .resourceSizing(ResourceSizing.newInstance(3, vector(64, 1, gpus, 0)))
            .build();
    return AllocateRequest.newBuilder().schedulingRequests(Collections.singletonList(ask)).build();
  }

  private GpuShareProcessor processor(boolean forWholeGpus) {
    Configuration conf = new Configuration(false);
    conf.setBoolean(Settings.FOR_WHOLE_GPUS, forWholeGpus);
    conf.set(Settings.SWITCH_FILE, folder.resolve("off").toString());
    GpuShareProcessor processor = new GpuShareProcessor();
    processor.setConf(conf);
    processor.init(manager(), new Scheduler());
    return processor;
  }

  /** Return what the scheduler sees of a request for one GPU, and what its master sees of a container with all of one. */
  private static List<Resource> resourcesSeenByYarnAndMaster(GpuShareProcessor processor) throws Exception {
    AllocateRequest request = AllocateRequest.newBuilder().askList(Collections.singletonList(RequestConverterTest.ask(64, 1, 0, 1))).build();
    AllocateResponse response = Records.newRecord(AllocateResponse.class);
    processor.allocate(ApplicationAttemptId.newInstance(APPLICATION, 1), request, response);
    return Arrays.asList(request.getAskList().get(0).getCapability(), response.getAllocatedContainers().get(0).getResource());
  }

  /** Return a ResourceManager with one application, which has no plan. */
  private RMContext manager() {
    ApplicationSubmissionContext submission = Records.newRecord(ApplicationSubmissionContext.class);
    RMApp application =
        answering(
            RMApp.class,
            "getApplicationSchedulingEnvs", Collections.emptyMap(),
            "getApplicationSubmissionContext", submission,
            "getSubmitTime", Long.MAX_VALUE);
    ResourceScheduler scheduler =
        answering(ResourceScheduler.class, "getMaximumResourceCapability", vector(8192, 32, 0, 100));
    ConcurrentHashMap<ApplicationId, RMApp> known = new ConcurrentHashMap<>();
    known.put(APPLICATION, application);
    RMNodeLabelsManager labels =
        new RMNodeLabelsManager() {
          @Override
          public Resource getResourceByLabel(String label, Resource cluster) {
            return vector(8192, 32, 0, 200);
          }
        };
    return answering(
        RMContext.class, "getRMApps", known, "getScheduler", scheduler, "getNodeLabelManager", labels, "getYarnConfiguration", new Configuration(false));
  }

  /** Return a {@code face} that answers some questions, by method and answer in turn, and null to the others. */
  static <T> T answering(Class<T> face, Object... answers) {
    Object made =
        Proxy.newProxyInstance(
            face.getClassLoader(),
            new Class<?>[] {face},
            (proxy, method, arguments) -> {
              int position = Arrays.asList(answers).indexOf(method.getName());
              return position < 0 ? null : answers[position + 1];
            });
    return face.cast(made);
  }

  /** Gives all of a GPU to whoever asks. */
  private static final class Scheduler implements ApplicationMasterServiceProcessor {
    @Override
    public void init(ApplicationMasterServiceContext context, ApplicationMasterServiceProcessor next) {}

    @Override
    public void registerApplicationMaster(
        ApplicationAttemptId attempt, RegisterApplicationMasterRequest request, RegisterApplicationMasterResponse response) {}

    @Override
    public void allocate(ApplicationAttemptId attempt, AllocateRequest request, AllocateResponse response) {
      response.setAllocatedContainers(Collections.singletonList(RequestConverterTest.container(ALLOCATED)));
    }

    @Override
    public void finishApplicationMaster(
        ApplicationAttemptId attempt, FinishApplicationMasterRequest request, FinishApplicationMasterResponse response) {}
  }
}
