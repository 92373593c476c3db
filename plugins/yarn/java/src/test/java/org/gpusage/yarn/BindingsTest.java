// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;

class BindingsTest {
  private static final List<String> ANY = Collections.emptyList();
  private static final List<String> TWO = Arrays.asList("0", "1");

  private final Bindings bindings = new Bindings(TWO);

  @Test
  void fiftyAndFiftyShareAGpuAndSixtyAndFiftyNeverDo() {
    assertEquals("0 0 1", bind("a", 50) + " " + bind("b", 50) + " " + bind("c", 60));
    assertEquals("", bind("d", 50));
  }

  @Test
  void theFullestGpuThatFitsIsTaken() {
    bind("a", 70);
    bind("b", 40);
    assertEquals("0", bind("c", 30));
    assertEquals("1", bind("d", 60));
  }

  @Test
  void whatFitsTheNodeButNoGpuIsNotBound() {
    bind("a", 75);
    bind("b", 75);
    assertEquals("", bind("c", 50));
    assertEquals("", bind("d", 101), "two whole GPUs");
    bindings.release("a");
    assertEquals("0", bind("c", 50));
  }

  @Test
  void whereAGpuIsNotKnownNothingNewIsBoundUntilItsContainerEnds() {
    bind("a", 20);
    bindings.adopt("lost", new Bindings.Binding(ANY, 10));
    assertEquals("", bind("b", 10));
    assertEquals("0", bind("a", 20), "what is known goes on");
    assertEquals("0=0,1=0", bindings.free());
    assertFalse(bindings.of("lost").isPresent());
    bindings.release("lost");
    assertEquals("0=80,1=100", bindings.free());
  }

  @Test
  void whatWasStartedBeforeIsTakenUpAsItIsAndOnce() {
    bindings.adopt("a", new Bindings.Binding(Collections.singletonList("1"), 70));
    bindings.adopt("a", new Bindings.Binding(Collections.singletonList("0"), 70));
    assertEquals("0=100,1=30", bindings.free());
  }

  @Test
  void gpusThatGotOtherNamesAreNotGivenOutWhileAnEarlierContainerMayBeOnThem() {
    Bindings renamed = new Bindings(Arrays.asList("GPU-aaaa", "GPU-bbbb"));
    renamed.adopt("a", new Bindings.Binding(Collections.singletonList("0"), 60));
    assertEquals("GPU-aaaa=0,GPU-bbbb=0", renamed.free());
    assertFalse(renamed.bind("b", 10, ANY, other -> false).isPresent());
    renamed.release("a");
    assertEquals("GPU-aaaa", renamed.bind("b", 10, ANY, other -> false).get().devices());
  }

  @Test
  void aGpuThatLeftTheListIsNoneOfTheOthers() {
    bindings.adopt("a", new Bindings.Binding(Collections.singletonList("7"), 60));
    assertEquals("0=100,1=100", bindings.free());
    Bindings longer = new Bindings(Arrays.asList("GPU-8a9b-1", "GPU-77"));
    longer.adopt("b", new Bindings.Binding(Collections.singletonList("GPU-8a9b"), 60));
    assertEquals("GPU-8a9b-1=0,GPU-77=100", longer.free());
    longer.adopt("a", new Bindings.Binding(Collections.singletonList("7"), 60));
    assertEquals("GPU-8a9b-1=0,GPU-77=0", longer.free(), "7 may be any of them");
  }

  @Test
  void noGpuIsEverOverfullWhateverHappens() {
    Random random = new Random(11);
    Map<String, String> where = new HashMap<>();
    for (int round = 0; round < 1500; round++) {
      String container = "c" + random.nextInt(12);
      if (random.nextInt(3) == 0) {
        bindings.release(container);
        where.remove(container);
      } else {
        String gpu = bind(container, 1 + random.nextInt(100));
        String earlier = where.get(container);
        assertTrue(earlier == null || gpu.equals(earlier), "a container moved");
        if (!gpu.isEmpty()) {
          where.put(container, gpu);
        }
      }
      assertTrue(bindings.free("0") >= 0 && bindings.free("1") >= 0);
    }
    where.keySet().forEach(bindings::release);
    assertEquals(200, bindings.free("0") + bindings.free("1"));
  }

  @Test
  void theGpuThatTheResourceManagerMeantIsTakenAndAnotherWhereItHasNoRoom() {
    List<String> second = Collections.singletonList("1");
    assertEquals("1", bindings.bind("a", 60, second, other -> false).get().devices());
    assertEquals("0", bindings.bind("b", 60, second, other -> false).get().devices());
  }

  @Test
  void containersThatMustBeApartHaveAGpuEach() {
    bind("a", 20);
    assertEquals("1", bindings.bind("b", 20, Collections.singletonList("0"), "a"::equals).get().devices());
    assertFalse(bindings.bind("c", 20, ANY, other -> true).isPresent());
  }

  @Test
  void severalWholeGpusAreThisContainersAlone() {
    assertEquals("0,1", bind("a", 200));
    assertEquals("0=0,1=0", bindings.free());
  }

  private String bind(String container, long share) {
    return bindings.bind(container, share, ANY, other -> false).map(Bindings.Binding::devices).orElse("");
  }
}
