package org.gpusage.yarn;

/**
 * Loads each class that it is given and makes an object of it, as a daemon does at its start. Run it with that daemon's classpath.
 *
 * <p>It prints one line per class, {@code CLASS ok} or {@code CLASS REASON}, and exits with 1 if a class is not ok. A daemon does not
 * start if its configuration names a class that cannot be loaded, and no class can prevent that.
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
