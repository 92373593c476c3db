// SPDX-License-Identifier: Apache-2.0
package standins;

import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.server.nodemanager.api.deviceplugin.Device;
import org.apache.hadoop.yarn.server.nodemanager.api.deviceplugin.DevicePlugin;
import org.apache.hadoop.yarn.server.nodemanager.api.deviceplugin.DevicePluginScheduler;
import org.apache.hadoop.yarn.server.nodemanager.api.deviceplugin.DeviceRegisterRequest;
import org.apache.hadoop.yarn.server.nodemanager.api.deviceplugin.DeviceRuntimeSpec;
import org.apache.hadoop.yarn.server.nodemanager.api.deviceplugin.YarnRuntimeType;

/**
 * Stands for NVIDIA's plugin of MIG slices for YARN's device framework: two slices of one GPU, by the resource name that the plugin has.
 *
 * <p>As with the original, the framework tells a container its slice in Docker alone; elsewhere the client does.
 */
public class MigPlugin implements DevicePlugin, DevicePluginScheduler {
  @Override
  public DeviceRegisterRequest getRegisterRequestInfo() {
    return DeviceRegisterRequest.Builder.newInstance().setResourceName("nvidia/miggpu").setPluginVersion("standin").build();
  }

  @Override
  public Set<Device> getDevices() {
    Set<Device> slices = new LinkedHashSet<>();
    for (int id = 0; id < 2; id++) {
      slices.add(Device.Builder.newInstance().setId(id).setBusID("slice-" + id).setHealthy(true).build());
    }
    return slices;
  }

  @Override
  public Set<Device> allocateDevices(Set<Device> available, int count, Map<String, String> environment) {
    return available.stream().limit(count).collect(Collectors.toSet());
  }

  @Override
  public DeviceRuntimeSpec onDevicesAllocated(Set<Device> allocated, YarnRuntimeType runtime) {
    String names = allocated.stream().map(Device::getBusID).collect(Collectors.joining(","));
    return DeviceRuntimeSpec.Builder.newInstance().addEnv("NVIDIA_VISIBLE_DEVICES", names).build();
  }

  @Override
  public void onDevicesReleased(Set<Device> released) {}
}
