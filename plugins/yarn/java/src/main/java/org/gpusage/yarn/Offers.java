// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import org.apache.hadoop.yarn.api.records.Resource;

/** What the nodes of the cluster offer to an application that asks for whole GPUs. */
interface Offers {
  /** No node offers shares in place of GPUs. */
  Offers NONE = new Offers() {};

  /** Return whether a node with {@code label} that offers GPUs in any form has registered. */
  default boolean offersGpus(String label) {
    return true;
  }

  /** Return whether GPUs in {@code required} become shares on nodes with {@code label}, which have no other for them. */
  default boolean becomesShares(String label, Resource required) {
    return false;
  }

  /** Return whether nodes that are without a label now may get one soon, as after a start of the ResourceManager. */
  default boolean areLabelsDue() {
    return false;
  }

  /**
   * Return the label to which requests for {@code required} go that name none; nothing for nodes without one, or if YARN finds others by itself.
   *
   * @param constrained whether such a request has placement constraints: it is given no label, and becomes shares where any label has only these for it
   */
  default String label(Resource required, boolean constrained) {
    return "";
  }
}
