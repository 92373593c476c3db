// SPDX-License-Identifier: Apache-2.0
package org.gpusage.yarn;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class KillSwitchTest {
  @TempDir Path folder;

  @Test
  void whatWasSubmittedBeforeTheFileKeepsItsPlan() throws Exception {
    File file = Files.createFile(folder.resolve("off")).toFile();
    assertTrue(file.setLastModified(5000));
    KillSwitch off = KillSwitch.of(file);
    assertTrue(off.isOff());
    assertTrue(off.wasOff(6000));
    assertFalse(off.wasOff(4000));
  }

  @Test
  void aFileThatIsDeletedWhileItIsLookedAtThrowsNothing() {
    File file =
        new File(folder.resolve("off").toString()) {
          private static final long serialVersionUID = 1L;

          @Override
          public boolean exists() {
            return true; // and gone right after
          }
        };
    assertFalse(KillSwitch.of(file).isOff());
  }
}
