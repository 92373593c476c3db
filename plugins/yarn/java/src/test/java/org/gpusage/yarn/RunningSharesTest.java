package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Arrays;
import java.util.Collections;
import org.junit.jupiter.api.Test;

class RunningSharesTest {
  @Test
  void oneUsersManyContainersHideNobodyElses() {
    String shown = RunningShares.roundRobin(Arrays.asList(Collections.nCopies(600, "many\n"), Arrays.asList("one\n", "two\n")));
    assertEquals("many\none\nmany\ntwo\nmany\n", shown.substring(0, 23));
    assertEquals(500, shown.split("\n").length);
  }

  @Test
  void whoeverIsAloneHasAllLines() {
    assertEquals(500, RunningShares.roundRobin(Collections.singleton(Collections.nCopies(600, "many\n"))).split("\n").length);
    assertEquals("", RunningShares.roundRobin(Collections.emptyList()));
  }
}
