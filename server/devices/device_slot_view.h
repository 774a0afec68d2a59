// State of a device slot for clients. Free of LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/devices/device_spec.h"
#include "server/telemetry/metrics.h"

namespace braid {

struct DeviceSlotView {
  std::string name;
  DeviceKind kind = DeviceKind::kCpu;
  int threads = 0;
  std::string hardware;
  int64_t samples = 0;
  std::array<absl::Duration, kPhases> busy;
};

using ListSlots = std::function<std::vector<DeviceSlotView>()>;

}  // namespace braid
