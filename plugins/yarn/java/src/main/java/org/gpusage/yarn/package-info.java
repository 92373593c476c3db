// SPDX-License-Identifier: Apache-2.0
/**
 * gpusage inside YARN: shares of GPUs and their generations for applications that carry a plan or a model's card.
 *
 * <p>Invariants of the whole package:
 *
 * <ol>
 *   <li>Whatever goes wrong here, YARN works as without us: each entry point catches exceptions, once, and YARN's own code runs outside the
 *       try. Errors pass where YARN answers them to somebody; where they would end a daemon, those of linking are caught, too. One exception: a
 *       container whose share cannot be bound to a GPU does not run, because two containers would have one GPU.
 *   <li>This package decides nothing. A {@link org.gpusage.yarn.Plan} comes with the application, or from gpusaged on the ResourceManager's host.
 *   <li>An application without a plan is untouched, except that it sees no GPU that others share. The same holds for every application that is
 *       submitted while the file of {@link org.gpusage.yarn.KillSwitch} exists.
 *   <li>Each class works without the others. Settings are keys {@code gpusage.*} of yarn-site.xml; each has a default.
 * </ol>
 */
@InterfaceAudience.Private
@InterfaceStability.Unstable
package org.gpusage.yarn;

import org.apache.hadoop.classification.InterfaceAudience;
import org.apache.hadoop.classification.InterfaceStability;
