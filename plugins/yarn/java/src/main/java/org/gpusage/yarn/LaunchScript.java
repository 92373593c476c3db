package org.gpusage.yarn;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.yarn.api.records.ContainerId;

/**
 * Tells what a container was started with. Reads its launch script, which the NodeManager keeps out of the user's reach until the container ends.
 *
 * <p>A user's variable may hold whole lines that look like ours. If a variable has two values, we believe neither.
 */
final class LaunchScript {
  private static final Pattern GPU = line("CUDA_VISIBLE_DEVICES", NodeSettings.NAMES);
  private static final Pattern SHARE = line(GpuShareNodeListener.SHARE, "[1-9][0-9]{0,5}");
  private static final int LIMIT_BYTES = 16 << 20;

  private LaunchScript() {}

  /** Return what {@code container} has of a GPU; nothing if no script below the NodeManager's {@code folders} says so. */
  static Optional<Bindings.Binding> binding(List<String> folders, ContainerId container) throws IOException {
    for (String folder : folders) {
      Path room = GpuWaitQueue.file(folder, container.toString());
      if (Files.isRegularFile(room)) { // it waited for its GPU, so that its script does not name it
        return binding(new String(Files.readAllBytes(room), StandardCharsets.ISO_8859_1));
      }
      String application = container.getApplicationAttemptId().getApplicationId().toString();
      Path script = Paths.get(folder, "nmPrivate", application, container.toString(), "launch_container.sh");
      if (Files.isRegularFile(script) && Files.size(script) <= LIMIT_BYTES) {
        return binding(new String(Files.readAllBytes(script), StandardCharsets.ISO_8859_1));
      }
    }
    return Optional.empty();
  }

  static Optional<Bindings.Binding> binding(String script) {
    Optional<String> share = only(SHARE, script);
    return only(GPU, script).flatMap(gpu -> share.map(percent -> new Bindings.Binding(gpu, Long.parseLong(percent))))
        .filter(Bindings.Binding::isSound);
  }

  /** Return whether the process that started {@code container} runs; its command line names the container, whoever owns it. */
  static boolean runs(String container) {
    try (DirectoryStream<Path> processes = Files.newDirectoryStream(Paths.get("/proc"), "[0-9]*")) {
      for (Path process : processes) {
        if (commandLine(process).contains("/" + container + "/")) {
          return true;
        }
      }
      return false;
    } catch (IOException noProc) {
      return false;
    }
  }

  private static String commandLine(Path process) {
    try {
      return new String(Files.readAllBytes(process.resolve("cmdline")), StandardCharsets.ISO_8859_1);
    } catch (IOException ended) {
      return "";
    }
  }

  private static Optional<String> only(Pattern line, String script) {
    Set<String> values = new HashSet<>();
    for (Matcher matcher = line.matcher(script); matcher.find(); ) {
      values.add(matcher.group(1));
    }
    return values.size() == 1 ? values.stream().findFirst() : Optional.empty();
  }

  private static Pattern line(String name, String value) {
    return Pattern.compile("^export " + name + "=\"(" + value + ")\"$", Pattern.MULTILINE);
  }
}
