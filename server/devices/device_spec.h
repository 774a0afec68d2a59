// Parser of the `--devices` flag.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace braid {

enum class DeviceKind { kCpu, kCuda };

// Place of one worker: the CPU or a GPU.
struct DeviceSlot {
  DeviceKind kind = DeviceKind::kCpu;
  // The GPU's ordinal, or the CPU slot's number.
  int index = 0;
  // Unique among the slots: "cpu:0", "cuda:1"; "cuda:0/1" where several workers share a GPU.
  std::string name;

  bool operator==(const DeviceSlot&) const = default;
};

// Parses `auto`, or a comma-separated list of `cpu`, `cpu*N` (N CPU slots), `cuda` (every GPU),
// `cuda:I` and `cuda:I*N` (N workers on GPU I). `auto` is every GPU, or `cpu*2` without a GPU. At
// most 64 slots. `gpus` is the number of GPUs, at least 1, or the reason why none can be used.
// INVALID_ARGUMENT for a syntax error and for a GPU that does not exist or is named twice.
absl::StatusOr<std::vector<DeviceSlot>> ParseDevices(absl::string_view text,
                                                     const absl::StatusOr<int>& gpus);

}  // namespace braid
