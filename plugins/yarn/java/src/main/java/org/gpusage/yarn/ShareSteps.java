// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import java.util.TreeSet;

/** The shares that a site gives out: a share is always the next one up, and more than a GPU is whole GPUs. */
final class ShareSteps {
  static final String DEFAULT = "5,10,15,20,25,30,33,35,40,45,50,55,60,65,70,75,80,85,90,95,100";

  private final TreeSet<Long> steps = new TreeSet<>();

  /** Read {@code text}, whole numbers from 1 to 100 with commas between them. */
  ShareSteps(String text) {
    for (String step : text.split(",")) {
      long value = Long.parseLong(step.trim());
      if (value < 1 || value > Settings.WHOLE_GPU) {
        throw new IllegalArgumentException("Step of shares must be from 1 to 100; got " + value);
      }
      steps.add(value);
    }
  }

  /** Return the step for {@code share}, at most {@code most}; a share of nothing stays one. */
  long snap(long share, long most) {
    if (share <= 0) {
      return share;
    }
    Long up = steps.ceiling(share);
    long over = share % Settings.WHOLE_GPU;
    long whole = over == 0 ? share : share - over + Settings.WHOLE_GPU;
    return Math.min(up == null ? whole : up, most);
  }
}
