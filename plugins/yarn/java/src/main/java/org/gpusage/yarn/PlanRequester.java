// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.File;
import java.io.IOException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks gpusaged for the plan of a submission that has a model's card and no plan, and writes the answer to its master's environment.
 */
final class PlanRequester {
  static final String CARD = "GPUSAGE_CARD";
  static final String COMMENT = "GPUSAGE_COMMENT";

  private static final Logger LOG = LoggerFactory.getLogger(PlanRequester.class);
  private static final Pattern IN_COMMAND = Pattern.compile("\\b(GPUSAGE_CARD|GPUSAGE_COMMENT)=([0-9a-zA-Z+/=,._:@-]{1,16384})");
  private static final Pattern VARIABLE = Pattern.compile("env\\.(GPUSAGE_[A-Z_]{1,40})");
  private static final Pattern NUMBERED = Pattern.compile("gpusage ([0-9a-f]{12}) ");
  private static final int MOST_TAGS = 10; // YARN's own limit
  private static final Pattern HARMLESS = Pattern.compile("[0-9a-zA-Z._/=:,+-]{0,4096}");
  private static final long WARM_UP_MS = 500;

  private final File socket;
  private final DaemonClient daemon;

  PlanRequester(Configuration conf) {
    socket = new File(conf.getTrimmed(Settings.DAEMON_SOCKET, "/run/gpusage/gpusaged.sock"));
    daemon = new DaemonClient(socket, Settings.daemonLimitMs(conf), Settings.daemonRestMs(conf));
  }

  void warmUp() {
    DaemonThreads.named("gpusage-warm-up").newThread(() -> new DaemonClient(socket, WARM_UP_MS, 0).ping()).start();
  }

  /** Return gpusaged's plan for the submission's card, and note it in its environment; null if gpusaged makes no plan. */
  Plan request(ApplicationSubmissionContext application, String user) throws Plan.PlanException, IOException {
    Map<String, String> model = model(application.getAMContainerSpec());
    if (model.isEmpty()) {
      return null;
    }
    Metrics.count(Metrics.Counter.DAEMON_REQUESTS);
    Map<String, String> answer;
    try {
      answer = daemon.request(fields(application, model, user));
    } catch (IOException silent) {
      Metrics.count(Metrics.Counter.DAEMON_SILENT);
      LOG.info("gpusage: {} goes on as it is. {}", application.getApplicationId(), silent.toString());
      return null;
    }
    if (!"REWRITE".equals(answer.get("code")) || !answer.containsKey("set.share")) {
      return null;
    }
    Plan plan = plan(answer);
    Map<String, String> environment = application.getAMContainerSpec().getEnvironment();
    answer.forEach((key, value) -> putHarmless(environment, key, value));
    environment.put(Plan.VARIABLE, plan.toBase64());
    tag(application, answer.getOrDefault("mark", ""));
    LOG.info("gpusage: {}: {}", application.getApplicationId(), answer.get("message"));
    return plan;
  }

  /** Note the number of the decision's record, which {@code mark} names, among the tags, by which the application is found again. */
  private static void tag(ApplicationSubmissionContext application, String mark) {
    Matcher numbered = NUMBERED.matcher(mark);
    Set<String> tags = new HashSet<>(application.getApplicationTags());
    if (numbered.lookingAt() && tags.size() < MOST_TAGS && tags.add("gpusage-number-" + numbered.group(1))) {
      application.setApplicationTags(tags);
    }
  }

  /** Return the card and the comment of the submission: variables of its master, or of the process that the master's command will start. */
  private static Map<String, String> model(ContainerLaunchContext master) {
    Map<String, String> model = new HashMap<>();
    for (String command : master.getCommands()) {
      Matcher variable = IN_COMMAND.matcher(command);
      while (variable.find()) {
        model.put(variable.group(1), variable.group(2));
      }
    }
    for (String name : new String[] {CARD, COMMENT}) {
      String value = master.getEnvironment().get(name);
      if (value != null && !value.isEmpty()) {
        model.put(name, value);
      }
    }
    return model;
  }

  private static Map<String, String> fields(ApplicationSubmissionContext application, Map<String, String> model, String user) {
    Map<String, String> fields = new HashMap<>();
    fields.put("user", bounded(user, 256));
    fields.put("id", String.valueOf(application.getApplicationId()));
    fields.put("queue", bounded(application.getQueue(), 256));
    fields.put("name", bounded(application.getApplicationName(), 256));
    fields.put("type", bounded(application.getApplicationType(), 64));
    fields.put("label", bounded(application.getNodeLabelExpression(), 64));
    fields.put("card", bounded(model.get(CARD), 16 * 1024));
    fields.put("comment", bounded(model.get(COMMENT), 8 * 1024));
    return fields;
  }

  /** Return {@code text}, or nothing if it is too long: half a card is useless. */
  private static String bounded(String text, int limit) {
    return text == null || text.length() > limit ? "" : text;
  }

  private static Plan plan(Map<String, String> answer) throws Plan.PlanException {
    Map<String, String> texts = new HashMap<>();
    answer.forEach(
        (key, value) -> {
          if (key.startsWith("set.")) {
            texts.put(key.substring("set.".length()), value);
          }
        });
    texts.put("v", Plan.VERSION);
    return Plan.of(texts);
  }

  private static void putHarmless(Map<String, String> environment, String key, String value) {
    Matcher variable = VARIABLE.matcher(key);
    if (variable.matches() && HARMLESS.matcher(value).matches()) {
      environment.put(variable.group(1), value);
    }
  }
}
