// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class RescueTest {
  private static final String FRAME = "Container exited with a non-zero exit code 1. Error file: stderr.\nLast 4096 bytes of stderr :\n";

  @ParameterizedTest
  @ValueSource(
      strings = {
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        "torch.cuda.OutOfMemoryError: ...",
        "RuntimeError: CUDA error: out of memory",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes",
        "E0000 CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "ResourceExhaustedError: OOM when allocating tensor with shape[64,3]",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
      })
  void theEndOfStderrTellsThatTheGpuHadNoMemoryLeft(String line) {
    assertEquals(ContainerOutcome.OUT_OF_MEMORY, ContainerOutcome.of(1, FRAME + line + "\n"));
    assertEquals(ContainerOutcome.SUCCEEDED, ContainerOutcome.of(0, FRAME + line));
    assertEquals(ContainerOutcome.LOST, ContainerOutcome.of(-100, line));
    assertEquals(ContainerOutcome.FAILED, ContainerOutcome.of(-104, line)); // YARN ended it for its host memory
  }

  @Test
  void anotherFailureIsNone() {
    assertEquals(ContainerOutcome.FAILED, ContainerOutcome.of(1, FRAME + "MemoryError\nout of memory: Killed process 12\nCUDA error: invalid argument"));
  }

  @Test
  void aShareIsRescuedOnceAndOnlyByTheFirstMaster() throws Exception {
    Plan plan = Plan.parse(PlanTest.encoded("{'v':'1','share':'40'}"));
    Rescue first = new Rescue(new Configuration(false), 1);
    assertEquals("", first.refusal(plan, 40));
    assertEquals("it had a whole GPU", first.refusal(plan.ofWholeGpu(), 40)); // whatever the scheduler made of it
    assertEquals("it had a whole GPU", first.refusal(plan, 100));
    assertFalse(new Rescue(new Configuration(false), 2).refusal(plan, 40).isEmpty());
    first.limit(50);
    assertEquals("its queue allows no container a whole GPU", first.refusal(plan, 40));
  }

  @Test
  void siteAndUserMayForbidIt() throws Exception {
    Plan unwilling = Plan.parse(PlanTest.encoded("{'v':'1','share':'40','rescue':'0'}"));
    assertTrue(new Rescue(new Configuration(false), 1).refusal(unwilling, 40).contains("--no-rescue"));
    Configuration off = new Configuration(false);
    off.setBoolean(Settings.RESCUE, false);
    assertTrue(new Rescue(off, 1).refusal(Plan.parse(PlanTest.encoded("{'v':'1','share':'40'}")), 40).contains(Settings.RESCUE));
  }

  @Test
  void aTaskThatIsRescuedAsksForAWholeGpuAndItsUserIsTold() throws Exception {
    Task task = new Task(1, Plan.parse(PlanTest.encoded("{'v':'1','share':'40'}")));
    task.container = RequestConverterTest.container(GpuShareResourceCalculatorTest.vector(64, 1, 0, 40));
    Rescue rescue = new Rescue(new Configuration(false), 1);
    assertTrue(rescue.retriesOnWholeGpu(task, 40));
    assertEquals(100, task.plan.share);
    assertFalse(rescue.retriesOnWholeGpu(task, 100));
    assertTrue(rescue.messages().matches("\\. container_\\w+ ran out of GPU memory in its share of 40, and its command ran again with a whole GPU"
        + "\\. container_\\w+ .* did not run again: it had a whole GPU"), rescue.messages());
  }
}
