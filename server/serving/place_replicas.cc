#include "server/serving/place_replicas.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

// Device index of all CPU workers.
constexpr int64_t kCpu = -1;

int64_t DeviceOf(const Worker& worker) {
  const c10::Device device = worker.torch_device();
  return device.is_cuda() ? device.index() : kCpu;
}

// Returns the device indices of a group.
absl::StatusOr<std::vector<int64_t>> DevicesOf(const InstanceGroup& group,
                                               const std::vector<Worker*>& workers,
                                               const std::string& field) {
  std::set<int64_t> gpus;
  for (const Worker* worker : workers) {
    if (const int64_t device = DeviceOf(*worker); device != kCpu) {
      gpus.insert(device);
    }
  }
  const bool on_cpu =
      group.kind == InstanceGroup::Kind::kCpu ||
      (group.kind == InstanceGroup::Kind::kAuto && group.gpus.empty() && gpus.empty());
  if (on_cpu) {
    return std::vector<int64_t>{kCpu};
  }
  if (group.gpus.empty() && gpus.empty()) {
    return InvalidField(field + ".kind",
                        "KIND_GPU, but --devices has no GPU (expected KIND_CPU, or a GPU in "
                        "--devices)");
  }
  return group.gpus.empty() ? std::vector<int64_t>(gpus.begin(), gpus.end()) : group.gpus;
}

}  // namespace

absl::StatusOr<std::vector<Worker*>> PlaceReplicas(const std::vector<InstanceGroup>& groups,
                                                   const std::vector<Worker*>& workers) {
  if (groups.empty()) {
    return workers;
  }
  std::set<const Worker*> chosen;
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string field = absl::StrCat("instance_group[", g, "]");
    BRAID_ASSIGN_OR_RETURN(const std::vector<int64_t> devices,
                           DevicesOf(groups[g], workers, field));
    for (const int64_t device : devices) {
      int64_t left = groups[g].count;
      for (const Worker* worker : workers) {
        if (left > 0 && DeviceOf(*worker) == device && chosen.insert(worker).second) {
          --left;
        }
      }
      if (left > 0) {
        const auto there = std::count_if(workers.begin(), workers.end(), [&](const Worker* worker) {
          return DeviceOf(*worker) == device;
        });
        const std::string slot = device == kCpu ? "cpu" : absl::StrCat("cuda:", device);
        return InvalidField(
            field + ".count",
            absl::StrCat(groups[g].count, " replicas on ", slot, ", which has ", there,
                         " workers, ", there - (groups[g].count - left),
                         " of them used by other groups (expected fewer replicas, or --devices=",
                         slot, "*N with a worker for each)"));
      }
    }
  }
  std::vector<Worker*> placed;
  std::copy_if(workers.begin(), workers.end(), std::back_inserter(placed),
               [&](const Worker* worker) { return chosen.count(worker) > 0; });
  return placed;
}

}  // namespace braid
