/**
 * gpusage inside YARN: shares of GPUs and their generations for applications that carry a plan or a model's card.
 *
 * <p>Invariants of the whole package:
 *
 * <ol>
 *   <li>Whatever goes wrong in here, stock YARN results: each entry point catches Throwable, and what is stock runs outside the try. One exception: a
 *       container with a share that cannot be bound to a GPU does not run, for two would have one GPU.
 *   <li>Nothing is decided here. A {@link org.gpusage.yarn.Plan} comes with the application, or from gpusaged on the ResourceManager's host.
 *   <li>An application without a plan is untouched, save that it sees no GPU that others share; so is every other that is submitted while the file of
 *       {@link org.gpusage.yarn.Switch} exists.
 *   <li>Each class works without the others. Settings are keys {@code gpusage.*} of yarn-site.xml; each has a default.
 * </ol>
 */
package org.gpusage.yarn;
