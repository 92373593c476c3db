package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class BindingsTest {
  private static final java.util.List<String> ANY = Collections.emptyList();
  private static final List<String> TWO = Arrays.asList("0", "1");

  @TempDir Path folder;
  private Path journal;

  @BeforeEach
  void nameJournal() {
    journal = folder.resolve("below/bindings");
  }

  @Test
  void fiftyAndFiftyShareAGpu() throws Exception {
    Bindings bindings = new Bindings(TWO, journal);
    assertEquals(bindings.bind("a", 50, ANY, true), bindings.bind("b", 50, ANY, true));
  }

  @Test
  void sixtyAndFiftyNeverDo() throws Exception {
    Bindings bindings = new Bindings(TWO, journal);
    assertNotEquals(bindings.bind("a", 60, ANY, true), bindings.bind("b", 50, ANY, true));
    assertEquals(Optional.empty(), new Bindings(Collections.singletonList("0"), journal).bind("c", 50, ANY, true));
  }

  @Test
  void theFullestGpuThatFitsIsTaken() throws Exception {
    Bindings bindings = new Bindings(TWO, null);
    bindings.bind("a", 70, ANY, true);
    bindings.bind("b", 40, ANY, true);
    assertEquals(Optional.of("0"), bindings.bind("c", 30, ANY, true));
    assertEquals(Optional.of("1"), bindings.bind("d", 60, ANY, true));
  }

  @Test
  void whatFitsTheNodeButNoGpuIsNotBound() throws Exception {
    Bindings bindings = new Bindings(TWO, journal);
    bindings.bind("a", 75, ANY, true);
    bindings.bind("b", 75, ANY, true);
    assertEquals(Optional.empty(), bindings.bind("c", 50, ANY, true));
    assertEquals(Optional.empty(), bindings.bind("d", 101, ANY, true), "two whole GPUs");
    bindings.release("a");
    assertEquals(Optional.of("0"), bindings.bind("c", 50, ANY, true));
  }

  @Test
  void aContainerKeepsItsGpuAfterARestart() throws Exception {
    Bindings before = new Bindings(TWO, journal);
    before.bind("a", 60, ANY, true);
    before.bind("b", 60, ANY, true);
    before.release("a");
    Bindings after = new Bindings(TWO, journal);
    assertEquals(Optional.of("1"), after.bind("b", 60, ANY, true));
    assertEquals(100, after.free("0"));
    assertEquals(40, after.free("1"));
  }

  @Test
  void whoseEndWasMissedIsReleased() throws Exception {
    Bindings bindings = new Bindings(TWO, journal);
    bindings.bind("a", 60, ANY, true);
    bindings.bind("b", 60, ANY, true);
    bindings.retainOnly("b"::equals);
    assertFalse(new Bindings(TWO, journal).has("a"));
    assertEquals("1", bindings.of("b").get().gpu);
  }

  @Test
  void aJournalThatCannotBeReadIsReadAsFarAsItCan() throws Exception {
    Files.createDirectories(journal.getParent());
    List<String> lines = Arrays.asList("a 0 60", "", "b 7 60", "c 1 -5", "d 1 1e9", "e 1", "f 1 40");
    Files.write(journal, lines, StandardCharsets.UTF_8);
    Bindings bindings = new Bindings(TWO, journal);
    assertEquals(40, bindings.free("0"));
    assertEquals(60, bindings.free("1"));
  }

  @Test
  void whereAGpuIsNotKnownNothingNewIsBoundUntilItsContainerEnds() throws Exception {
    Bindings bindings = new Bindings(TWO, journal);
    bindings.bind("a", 20, ANY, true);
    bindings.adopt("lost", new Bindings.Binding(Bindings.Binding.UNKNOWN, 10));
    assertEquals(Optional.empty(), bindings.bind("b", 10, ANY, true));
    assertEquals(Optional.of("0"), bindings.bind("a", 20, ANY, true), "what is known goes on");
    assertEquals("0=0,1=0", bindings.free());
    assertFalse(bindings.of("lost").isPresent());
    assertFalse(new Bindings(TWO, journal).has("lost"), "it is to be looked for once more");
    bindings.release("lost");
    assertEquals("0=80,1=100", bindings.free());
  }

  @Test
  void whatWasStartedBeforeIsTakenUpAsItIsAndOnce() throws Exception {
    Bindings bindings = new Bindings(TWO, journal);
    bindings.adopt("a", new Bindings.Binding("1", 70));
    bindings.adopt("a", new Bindings.Binding("0", 70));
    assertEquals("0=100,1=30", new Bindings(TWO, journal).free());
  }

  @Test
  void gpusThatGotOtherNamesAreNotGivenOutWhileAnEarlierContainerMayBeOnThem() throws Exception {
    new Bindings(TWO, journal).bind("a", 60, ANY, true);
    Bindings renamed = new Bindings(Arrays.asList("GPU-aaaa", "GPU-bbbb"), journal);
    assertEquals("GPU-aaaa=0,GPU-bbbb=0", renamed.free());
    assertEquals(Optional.empty(), renamed.bind("b", 10, ANY, true));
    renamed.release("a");
    assertEquals(Optional.of("GPU-aaaa"), renamed.bind("b", 10, ANY, true));
  }

  @Test
  void aGpuThatLeftTheListIsNoneOfTheOthers() throws Exception {
    new Bindings(Arrays.asList("7", "1"), journal).bind("a", 60, ANY, true);
    assertEquals("0=100,1=100", new Bindings(TWO, journal).free());
    new Bindings(Collections.singletonList("GPU-8a9b"), journal).bind("b", 60, ANY, true);
    List<String> longer = Arrays.asList("GPU-8a9b-1", "GPU-77");
    assertEquals("GPU-8a9b-1=0,GPU-77=0", new Bindings(longer, journal).free(), "7 may be any of them");
  }

  @Test
  void aDiskThatTakesNoJournalStopsNoBinding() throws Exception {
    Files.write(folder.resolve("below"), new byte[0]);
    Bindings bindings = new Bindings(TWO, journal);
    assertEquals(bindings.bind("a", 50, ANY, true), bindings.bind("b", 50, ANY, true));
    assertNotEquals(bindings.bind("a", 50, ANY, true), bindings.bind("c", 60, ANY, true));
  }

  @Test
  void aJournalOfAnyBytesIsReadAsFarAsItCan() throws Exception {
    Files.createDirectories(journal.getParent());
    Files.write(journal, new byte[] {(byte) 0xff, 0, '\n', 'a', ' ', '0', ' ', '6', '0'});
    assertEquals(40, new Bindings(TWO, journal).free("0"));
  }

  @Test
  void noGpuIsEverOverfullWhateverHappens() throws Exception {
    Random random = new Random(11);
    Map<String, String> where = new HashMap<>();
    Bindings bindings = new Bindings(TWO, journal);
    for (int round = 0; round < 1500; round++) {
      String container = "c" + random.nextInt(12);
      if (random.nextInt(3) == 0) {
        bindings.release(container);
        where.remove(container);
      } else if (random.nextInt(20) == 0) {
        bindings = new Bindings(TWO, journal);
      } else {
        Optional<String> gpu = bindings.bind(container, 1 + random.nextInt(100), ANY, true);
        String earlier = where.get(container);
        assertTrue(earlier == null || gpu.equals(Optional.of(earlier)), "a container moved");
        gpu.ifPresent(bound -> where.put(container, bound));
      }
      assertTrue(bindings.free("0") >= 0 && bindings.free("1") >= 0);
    }
    for (String container : where.keySet().toArray(new String[0])) {
      bindings.release(container);
    }
    assertEquals(200, bindings.free("0") + bindings.free("1"));
  }

  @Test
  void theGpuThatTheResourceManagerMeantIsTakenAndAnotherOnlyWhereThatIsAllowed() {
    Bindings bindings = new Bindings(TWO, null);
    assertEquals(Optional.of("1"), bindings.bind("a", 60, Collections.singletonList("1"), false));
    assertEquals(Optional.empty(), bindings.bind("b", 60, Collections.singletonList("1"), false));
    assertEquals(Optional.of("0"), bindings.bind("b", 60, Collections.singletonList("1"), true));
  }

  @Test
  void severalWholeGpusAreThisContainersAlone() {
    Bindings bindings = new Bindings(TWO, journal);
    assertEquals(Optional.of("0,1"), bindings.bind("a", 200, ANY, true));
    assertEquals("0=0,1=0", new Bindings(TWO, journal).free());
  }
}
