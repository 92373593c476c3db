package org.gpusage.yarn;

import org.apache.hadoop.yarn.api.records.Resource;

/**
 * Counts vcores as little as YARN's DefaultResourceCalculator does, for sites that have that one: with it, YARN takes no resource types but memory
 * and vcores, so shares need another calculator, and the dominant one would let each job of the site wait for vcores from then on.
 *
 * <p>Each container has one vcore in YARN's books, whatever it asked for, and no vcore keeps a container or a queue from its memory.
 */
public class GpuShareMemoryResourceCalculator extends GpuShareResourceCalculator {
  @Override
  public int compare(Resource cluster, Resource left, Resource right, boolean singleType) {
    return super.compare(cluster, withVcores(left, 0), withVcores(right, 0), singleType);
  }

  @Override
  public long computeAvailableContainers(Resource available, Resource required) {
    return super.computeAvailableContainers(available, withVcores(required, 0));
  }

  @Override
  public float divide(Resource cluster, Resource numerator, Resource denominator) {
    return super.divide(cluster, withVcores(numerator, 0), withVcores(denominator, 0));
  }

  @Override
  public float ratio(Resource numerator, Resource denominator) {
    return super.ratio(withVcores(numerator, 0), withVcores(denominator, 0));
  }

  @Override
  public boolean fitsIn(Resource smaller, Resource bigger) {
    return super.fitsIn(withVcores(smaller, 0), withVcores(bigger, 0));
  }

  @Override
  public boolean isAnyMajorResourceZeroOrNegative(Resource amounts) {
    return super.isAnyMajorResourceZeroOrNegative(withVcores(amounts, 1));
  }

  @Override
  public boolean isAnyMajorResourceAboveZero(Resource amounts) {
    return super.isAnyMajorResourceAboveZero(withVcores(amounts, 0));
  }

  @Override
  public Resource normalize(Resource requested, Resource least, Resource most, Resource step) {
    return withVcores(super.normalize(requested, least, most, step), 1);
  }

  /** Return {@code amounts} with that many vcores; what YARN calls in a dispatcher's thread must not throw. */
  private static Resource withVcores(Resource amounts, int vcores) {
    try {
      Resource changed = Resource.newInstance(amounts);
      changed.setVirtualCores(vcores);
      return changed;
    } catch (Throwable failure) {
      Metrics.recordFailure("calculator's vcores", failure);
      return amounts;
    }
  }
}
