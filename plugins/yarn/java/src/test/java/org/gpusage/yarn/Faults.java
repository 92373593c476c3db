package org.gpusage.yarn;

import org.apache.hadoop.yarn.api.records.Resource;

/** Our classes with a fault inside each entry point; the tests on a real cluster name them in its configuration. */
public final class Faults {
  private Faults() {}

  static Error fault(String place) {
    return new NoClassDefFoundError("fault of a test in " + place);
  }

  /** Fails at every request. */
  public static class Calculator extends GpuShareResourceCalculator {
    @Override
    Resource snapped(Resource stock, Resource most) {
      throw fault("the calculator");
    }
  }
}
