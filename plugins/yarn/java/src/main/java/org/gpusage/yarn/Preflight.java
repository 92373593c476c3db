package org.gpusage.yarn;

/**
 * Loads and makes each class that it is named, as a daemon will when it starts; to be run with that daemon's own classpath.
 *
 * <p>It prints a line a class, {@code CLASS ok} or {@code CLASS REASON}, and ends with 1 where one is not ok. A daemon does not start
 * with a class in its configuration that cannot be loaded, and no class can help that.
 */
public final class Preflight {
  private Preflight() {}

  public static void main(String[] names) {
    boolean good = true;
    System.out.println("gpusage " + Metrics.version());
    for (String name : names) {
      String verdict = verdict(name);
      good &= verdict.equals("ok");
      System.out.println(name + " " + verdict);
    }
    System.exit(good ? 0 : 1);
  }

  static String verdict(String name) {
    try {
      Class.forName(name).getDeclaredConstructor().newInstance();
      return "ok";
    } catch (Throwable failure) {
      return failure.toString().replaceAll("[^\\x20-\\x7e]+", " ");
    }
  }
}
