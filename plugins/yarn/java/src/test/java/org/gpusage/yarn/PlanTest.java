// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.impl.pb.ApplicationSubmissionContextPBImpl;
import org.apache.hadoop.yarn.util.Records;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class PlanTest {
  private static final String WHOLE =
      "{'v':'1','share':'40','labels':'h100,a100','fallback_after_s':'30','containers':'2','rescue':'0'}";

  @Test
  void aPlanIsReadAsItWasWritten() throws Exception {
    Plan plan = Plan.parse(Plan.parse(encoded(WHOLE)).toBase64());
    assertEquals(40, plan.share);
    assertEquals(Arrays.asList("h100", "a100"), plan.labels);
    assertEquals(30, plan.fallbackAfterS);
    assertEquals(2, plan.containers);
    assertEquals(false, plan.rescue);
  }

  /** Python writes each accepted plan, and none of the refused ones: tests/unit/yarn/test_share_plan.py reads the same file. */
  @Test
  void whatPythonWritesIsAcceptedAsItIs() throws Exception {
    Path file = Paths.get(PlanTest.class.getResource("/plans.txt").toURI());
    for (String line : Files.readAllLines(file)) {
      String[] words = line.split(" ", 2);
      String text = FlatJson.toBase64(words[1]);
      if (words[0].equals("accepted")) {
        assertEquals(words[1], FlatJson.fromBase64(Plan.parse(text).toBase64()));
      } else {
        assertThrows(Plan.PlanException.class, () -> Plan.parse(text), line);
      }
    }
  }

  @Test
  void aPlanForAWholeGpuHasNoLimitOfAShareAndTheSameGenerations() throws Exception {
    Plan plan = Plan.parse(encoded("{'v':'1','share':'40','threads':'80','labels':'a100,v100'}")).ofWholeGpu();
    assertEquals(Arrays.asList(100, 0), Arrays.asList(plan.share, plan.threads));
    assertEquals(Arrays.asList("a100", "v100"), plan.labels);
    assertEquals(true, plan.rescue);
  }

  @Test
  void aPlanThatCameWithASubmissionNeverHasMoreThreadsThanItsShare() throws Exception {
    Map<String, String> forged = Collections.singletonMap(Plan.VARIABLE, encoded("{'v':'1','share':'5','threads':'100','labels':'a100'}"));
    ApplicationSubmissionContext application = Records.newRecord(ApplicationSubmissionContext.class);
    application.setAMContainerSpec(Records.newRecord(ContainerLaunchContext.class));
    application.getAMContainerSpec().setEnvironment(new HashMap<>(forged));
    application.setApplicationSchedulingPropertiesMap(new HashMap<>(forged));
    GpuSharePlacementRule.limitPlan(application);
    ApplicationSubmissionContext stored = new ApplicationSubmissionContextPBImpl(((ApplicationSubmissionContextPBImpl) application).getProto());
    Plan plan = Plan.parse(stored.getAMContainerSpec().getEnvironment().get(Plan.VARIABLE));
    assertEquals(Arrays.asList(5, 0), Arrays.asList(plan.share, plan.threads));
    assertEquals(Arrays.asList("a100"), plan.labels);
    assertEquals(Collections.emptyMap(), stored.getApplicationSchedulingPropertiesMap());
  }

  @Test
  void onlyVersionAndShareMustBeThere() throws Exception {
    Plan plan = Plan.parse(encoded("{'v':'1','share':'5','later':'unknown'}"));
    assertEquals(Collections.emptyList(), plan.labels);
    assertEquals(1, plan.containers);
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "{'v':'1','share':'1000000000'}",
        "{'v':'1','share':'40','apart':'2'}",
        "{'v':'1','share':'-1'}",
        "{'v':'1','share':'0'}",
        "{'v':'1','share':'101'}",
        "{'v':'1','share':'NaN'}",
        "{'v':'1','share':'Infinity'}",
        "{'v':'1','share':'4e1'}",
        "{'v':'1','share':'٤٠'}",
        "{'v':'1','share':40}",
        "{'v':'1','share':null}",
        "{'v':'1','share':'40','share':'50'}",
        "{'v':'1','share':'40'} {}",
        "{'v':'1','share':'40'",
        "{'v':'2','share':'40'}",
        "{'share':'40'}",
        "{'v':'1'}",
        "{'v':'1','share':'40','labels':'a100,,h100'}",
        "{'v':'1','share':'40','labels':'a100&&h100'}",
        "{'v':'1','share':'40','labels':'a\\u0000b'}",
        "{'v':'1','share':'40','labels':'$(id)'}",
        "{'v':'1','share':'40','containers':'999999'}",
        "{'v':'1','share':'40','fallback_after_s':'-3'}",
        "['v','1']",
        "{'v':{'v':{'v':'1'}}}",
        "",
      })
  void aHostilePlanIsRefusedInOnePrintableSentence(String json) {
    Plan.PlanException refusal = assertThrows(Plan.PlanException.class, () -> Plan.parse(encoded(json)));
    assertTrue(refusal.getMessage().matches("Plan's [\\x20-\\x7e]{1,300}\\."), refusal.getMessage());
  }

  @Test
  void aPlanOfAMegabyteIsRefusedUnread() {
    char[] text = new char[1 << 20];
    Arrays.fill(text, 'A');
    assertThrows(Plan.PlanException.class, () -> Plan.parse(new String(text)));
  }

  @Test
  void deepNestingIsRefused() {
    char[] text = new char[8000];
    Arrays.fill(text, '[');
    assertThrows(Plan.PlanException.class, () -> Plan.parse(encoded(new String(text))));
  }

  @Test
  void anyBytesAreAPlanOrRefused() {
    Random random = new Random(3);
    String whole = encoded(WHOLE);
    int refused = 0;
    for (int round = 0; round < 5000; round++) {
      StringBuilder text = new StringBuilder(whole);
      for (int i = random.nextInt(4); i >= 0; i--) {
        text.setCharAt(random.nextInt(text.length()), (char) random.nextInt(300));
      }
      try {
        Plan plan = Plan.parse(text.toString());
        assertTrue(1 <= plan.share && plan.share <= 100);
      } catch (Plan.PlanException refusal) {
        refused++;
      }
    }
    assertTrue(refused > 2500, "refused " + refused);
  }

  @Test
  void anEnvironmentSurvivesFlatJson() throws Exception {
    Map<String, String> texts = new HashMap<>();
    texts.put("A", "quotes \" ' \\ $HOME `id` \n\t é \u0001");
    assertEquals(texts, FlatJson.parse(FlatJson.write(texts)));
  }

  static String encoded(String json) {
    return Base64.getEncoder().encodeToString(json.replace('\'', '"').getBytes(java.nio.charset.StandardCharsets.UTF_8));
  }
}
