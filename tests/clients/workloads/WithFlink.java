// SPDX-License-Identifier: Apache-2.0
import java.nio.charset.StandardCharsets;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Trains in a TaskManager: {@code WithFlink COMMAND ...}, which prints what it has found. */
public final class WithFlink {
  private WithFlink() {}

  public static void main(String[] command) throws Exception {
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
    environment.fromData(String.join("\n", command)).map(WithFlink::run).returns(Types.STRING).print();
    environment.execute("training");
  }

  private static String run(String command) throws Exception {
    Process training = new ProcessBuilder(command.split("\n")).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    String printed = new String(training.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    if (training.waitFor() != 0) {
      throw new IllegalStateException(command + " failed: " + printed);
    }
    return printed.trim();
  }
}
