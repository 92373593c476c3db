package org.gpusage.yarn;

import java.io.File;
import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.placement.ApplicationPlacementContext;
import org.apache.hadoop.yarn.server.resourcemanager.placement.PlacementRule;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Gives a submission with a plan its node label; where there is a model's card and no plan, asks gpusaged for one first.
 *
 * <p>It never chooses a queue: its answer is always null, so that the next rule decides. A submission that is being recovered is left alone
 * before anything else, because an exception then keeps the ResourceManager from starting.
 */
public class GpuSharePlacementRule extends PlacementRule implements Configurable {
  static final String CARD = "GPUSAGE_CARD";
  static final String COMMENT = "GPUSAGE_COMMENT";

  private static final Logger LOG = LoggerFactory.getLogger(GpuSharePlacementRule.class);
  private static final Pattern IN_COMMAND = Pattern.compile("\\b(GPUSAGE_CARD|GPUSAGE_COMMENT)=([0-9a-zA-Z+/=,._:@-]{1,16384})");
  private static final Pattern VARIABLE = Pattern.compile("env\\.(GPUSAGE_[A-Z_]{1,40})");
  private static final Pattern HARMLESS = Pattern.compile("[0-9a-zA-Z._/=:,+-]{0,4096}");
  private static final long WARM_UP_MS = 500;

  private Configuration conf;
  private Switch off;
  private DaemonClient daemon;
  private RMContext rm;

  @Override
  public void setConf(Configuration conf) {
    this.conf = conf;
  }

  @Override
  public Configuration getConf() {
    return conf;
  }

  @Override
  public boolean initialize(ResourceScheduler scheduler) throws IOException {
    try {
      start(scheduler);
      return true;
    } catch (Throwable failure) {
      Metrics.contain("rule.initialize", failure);
      return false;
    }
  }

  @Override
  public ApplicationPlacementContext getPlacementForApp(ApplicationSubmissionContext application, String user)
      throws YarnException {
    return getPlacementForApp(application, user, false);
  }

  /** As above; Hadoop 3.3 has no such method, and calls the one above on recovery too, where the label stands already. */
  public ApplicationPlacementContext getPlacementForApp(
      ApplicationSubmissionContext application, String user, boolean recovery) throws YarnException {
    if (recovery) {
      return null;
    }
    try {
      if (!off.isOff()) {
        place(application, user);
      }
    } catch (Plan.PlanException refusal) {
      Metrics.count(Metrics.Counter.PLANS_REFUSED);
      LOG.warn("gpusage: {} goes on without its plan. {}", application.getApplicationId(), refusal.getMessage());
    } catch (Throwable failure) {
      Metrics.contain("rule.place", failure);
    }
    return null;
  }

  void start(ResourceScheduler scheduler) {
    rm = ((CapacityScheduler) scheduler).getRMContext();
    off = Settings.offSwitch(conf);
    File socket = new File(conf.getTrimmed(Settings.DAEMON_SOCKET, "/run/gpusage/gpusaged.sock"));
    daemon = new DaemonClient(socket, conf.getLong(Settings.DAEMON_LIMIT_MS, 10));
    Thread warmUp = new Thread(() -> new DaemonClient(socket, WARM_UP_MS).ping(), "gpusage-warm-up");
    warmUp.setDaemon(true);
    warmUp.start();
    Metrics.started(this);
  }

  void place(ApplicationSubmissionContext application, String user) throws Exception {
    ContainerLaunchContext master = application.getAMContainerSpec();
    if (master == null) {
      return;
    }
    Map<String, String> environment = master.getEnvironment();
    String text = environment.get(Plan.VARIABLE);
    Plan plan = text == null ? asked(application, master, user) : Plan.parse(text);
    if (plan != null) {
      Metrics.count(Metrics.Counter.PLANS_TAKEN);
      label(application, plan);
    }
  }

  /** Return the plan that gpusaged makes of the submission's card, noted in its environment; null where none is made. */
  private Plan asked(ApplicationSubmissionContext application, ContainerLaunchContext master, String user)
      throws Exception {
    Map<String, String> model = model(master);
    if (model.isEmpty()) {
      return null;
    }
    Metrics.count(Metrics.Counter.DAEMON_ASKED);
    Map<String, String> answer;
    try {
      answer = daemon.ask(fields(application, model, user));
    } catch (IOException silent) {
      Metrics.count(Metrics.Counter.DAEMON_SILENT);
      LOG.info("gpusage: {} goes on as it is. {}", application.getApplicationId(), silent.toString());
      return null;
    }
    if (!"REWRITE".equals(answer.get("code")) || !answer.containsKey("set.share")) {
      return null;
    }
    Plan plan = plan(answer);
    Map<String, String> environment = master.getEnvironment();
    answer.forEach((key, value) -> putHarmless(environment, key, value));
    environment.put(Plan.VARIABLE, plan.toBase64());
    LOG.info("gpusage: {}: {}", application.getApplicationId(), answer.get("message"));
    return plan;
  }

  /** Return the card and the comment of the submission: variables of its master, or of what the master's command will start. */
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

  private static Map<String, String> fields(
      ApplicationSubmissionContext application, Map<String, String> model, String user) {
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

  /** Return {@code text}, or nothing where it is too long: half a card is none. */
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

  /** Label the application and its master with the plan's first usable generation, unless the user named a label. */
  private void label(ApplicationSubmissionContext application, Plan plan) {
    if (!isEmpty(application.getNodeLabelExpression())) {
      return;
    }
    List<String> usable = Generations.usable(rm, application.getQueue(), plan.labels);
    if (usable.isEmpty()) {
      return;
    }
    application.setNodeLabelExpression(usable.get(0));
    List<ResourceRequest> masters = application.getAMContainerResourceRequests();
    if (masters != null) {
      masters.stream()
          .filter(ask -> ResourceRequest.isAnyLocation(ask.getResourceName()))
          .filter(ask -> isEmpty(ask.getNodeLabelExpression()))
          .forEach(ask -> ask.setNodeLabelExpression(usable.get(0)));
    }
  }

  private static boolean isEmpty(String text) {
    return text == null || text.trim().isEmpty();
  }
}
