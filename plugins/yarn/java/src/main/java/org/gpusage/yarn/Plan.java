// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;

/**
 * The decision for an application: each container's share of a GPU, and the GPU generations to use, best first.
 *
 * <p>It stands in the variable {@link #VARIABLE} of the ApplicationMaster's environment, as base64 of a flat JSON object of texts: bash expands
 * environment values again, and it leaves base64 alone.
 */
final class Plan {
  static final String VARIABLE = "GPUSAGE_PLAN";
  static final String VERSION = "1";

  private static final int LIMIT_CHARACTERS = 16 * 1024;
  private static final Pattern NUMBER = Pattern.compile("[0-9]{1,9}");
  private static final Pattern LABEL = Pattern.compile("[0-9a-zA-Z][0-9a-zA-Z_-]{0,63}");
  private static final int MOST_LABELS = 16;

  /** Hundredths of one GPU, 1 to 100. */
  final int share;

  /** The most of a GPU's threads, in percent, that a container's processes may use; 0 for as much as the share. */
  final int threads;

  /** MPS's for a container's processes: 0 normal, 1 below normal. */
  final int priority;

  /** Node labels, which name generations, best first; empty if any node will do. */
  final List<String> labels;

  /** After how long without a container the next label is tried; 0 for never. */
  final int fallbackAfterS;

  /** How many containers run the user's command. */
  final int containers;

  /** Memory and cores of a container's own, beside the GPU; 0 if the plan does not say. */
  final int memoryMib;

  final int vcores;

  /** Whether a command whose share has too little GPU memory runs once more, with a whole GPU. */
  final boolean rescue;

  /** Whether no two containers run on one GPU, as libraries of parallel training require. */
  final boolean apart;

  private Plan(Map<String, String> texts) throws PlanException {
    if (!VERSION.equals(texts.get("v"))) {
      throw new PlanException("v", "be " + VERSION, texts.get("v"));
    }
    share = number(texts, "share", null, 1, Settings.WHOLE_GPU);
    threads = number(texts, "threads", "0", 0, Settings.WHOLE_GPU);
    priority = number(texts, "priority", "0", 0, 1);
    labels = labels(texts);
    fallbackAfterS = number(texts, "fallback_after_s", "0", 0, 7 * 86400);
    containers = number(texts, "containers", "1", 1, 10_000);
    memoryMib = number(texts, "memory_mib", "0", 0, 1 << 24);
    vcores = number(texts, "vcores", "0", 0, 10_000);
    rescue = number(texts, "rescue", "1", 0, 1) == 1;
    apart = number(texts, "apart", "0", 0, 1) == 1;
  }

  /** Return what the scheduler must have for one container, as far as the plan says it. */
  Resource container(String shareResource) {
    Resource container = Resource.newInstance(memoryMib, vcores);
    if (ResourceUtils.getResourceTypeIndex().containsKey(shareResource)) {
      container.setResourceValue(shareResource, share);
    }
    return container;
  }

  /** Return the plan for an application that has none and wants a whole GPU of any generation. */
  static Plan wholeGpu() {
    Map<String, String> texts = new LinkedHashMap<>();
    texts.put("v", VERSION);
    texts.put("share", String.valueOf(Settings.WHOLE_GPU));
    return sound(texts);
  }

  /** Return this plan for a whole GPU, without the limits of a share. */
  Plan ofWholeGpu() {
    Map<String, String> texts = texts();
    texts.put("share", String.valueOf(Settings.WHOLE_GPU));
    texts.put("threads", "0");
    return sound(texts);
  }

  /** Return this plan with as many threads as the share. */
  Plan withoutThreads() {
    Map<String, String> texts = texts();
    texts.put("threads", "0");
    return sound(texts);
  }

  /** Return the plan in {@code text}, the base64 form. */
  static Plan parse(String text) throws PlanException {
    if (text.length() > LIMIT_CHARACTERS) {
      throw new PlanException("text", "have at most " + LIMIT_CHARACTERS + " characters", text.length() + " characters");
    }
    try {
      return of(FlatJson.parse(FlatJson.fromBase64(text)));
    } catch (IOException error) {
      throw new PlanException("text", "be base64 of a flat JSON object of texts", text);
    }
  }

  static Plan of(Map<String, String> texts) throws PlanException {
    return new Plan(texts);
  }

  /** Return the plan in texts that are ours. */
  private static Plan sound(Map<String, String> texts) {
    try {
      return of(texts);
    } catch (PlanException impossible) {
      throw new IllegalStateException(impossible);
    }
  }

  String toBase64() throws IOException {
    return FlatJson.toBase64(FlatJson.write(texts()));
  }

  private Map<String, String> texts() {
    Map<String, String> texts = new LinkedHashMap<>();
    texts.put("v", VERSION);
    texts.put("share", String.valueOf(share));
    texts.put("threads", String.valueOf(threads));
    texts.put("priority", String.valueOf(priority));
    texts.put("labels", String.join(",", labels));
    texts.put("fallback_after_s", String.valueOf(fallbackAfterS));
    texts.put("containers", String.valueOf(containers));
    texts.put("memory_mib", String.valueOf(memoryMib));
    texts.put("vcores", String.valueOf(vcores));
    texts.put("rescue", rescue ? "1" : "0");
    texts.put("apart", apart ? "1" : "0");
    return texts;
  }

  private static int number(Map<String, String> texts, String key, String absent, int least, int most)
      throws PlanException {
    String text = texts.getOrDefault(key, absent);
    if (text != null && NUMBER.matcher(text).matches()) {
      int number = Integer.parseInt(text);
      if (least <= number && number <= most) {
        return number;
      }
    }
    throw new PlanException(key, "be a whole number from " + least + " to " + most, text);
  }

  private static List<String> labels(Map<String, String> texts) throws PlanException {
    String text = texts.getOrDefault("labels", "");
    List<String> labels = text.isEmpty() ? Collections.emptyList() : new ArrayList<>(new LinkedHashSet<>(Arrays.asList(text.split(",", -1))));
    if (labels.size() > MOST_LABELS || !labels.stream().allMatch(label -> LABEL.matcher(label).matches())) {
      throw new PlanException("labels", "be at most " + MOST_LABELS + " node labels with commas between them", text);
    }
    return Collections.unmodifiableList(labels);
  }

  /** Says what is wrong with a plan, in one sentence that is safe to print. */
  static final class PlanException extends Exception {
    private static final long serialVersionUID = 1L;

    PlanException(String key, String rule, String got) {
      super("Plan's " + key + " must " + rule + "; got " + printable(got) + ". Make the plan again with gpusage yarn submit.");
    }

    private static String printable(String got) {
      String start = got == null ? "nothing" : "'" + got.substring(0, Math.min(got.length(), 40)) + "'";
      return start.replaceAll("[^\\x20-\\x7e]", "?");
    }
  }
}
