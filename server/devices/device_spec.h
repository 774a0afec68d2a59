// Which device slots the server owns: the `--devices` flag, as text and as a list.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

enum class DeviceKind { kCpu, kCuda };

// One slot: a worker thread and what it runs on.
struct DeviceSlot {
  DeviceKind kind = DeviceKind::kCpu;
  // The GPU's ordinal, or the CPU slot's number.
  int index = 0;
  // Unique among the slots: "cpu:0", "cuda:1"; "cuda:0/1" where several workers share a GPU.
  std::string name;

  bool operator==(const DeviceSlot&) const = default;
};

// Reads `auto`, or a comma-separated list of `cpu`, `cpu*N` (N CPU slots), `cuda` (every GPU),
// `cuda:I` and `cuda:I*N` (N workers on GPU I). `auto` is every GPU, or `cpu*2` where there is
// none. `gpus`: how many GPUs there are (at least 1), or why none can be used. At most 64 slots.
// INVALID_ARGUMENT for what it does not understand and for a GPU that is not there or named twice.
absl::StatusOr<std::vector<DeviceSlot>> ParseDevices(absl::string_view text,
                                                     const absl::StatusOr<int>& gpus);

}  // namespace braid
