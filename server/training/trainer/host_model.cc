#include "server/training/trainer/host_model.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/devices/run_on.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

absl::Status SetState(const std::vector<StateEntry>& state, c10::Device device, Replica& replica) {
  const c10::AutoGradMode no_grad(false);
  std::map<std::string, at::Tensor> values;
  for (const StateEntry& entry : state) {
    values[entry.name] = entry.value;
  }
  const std::vector<StateEntry> entries = replica.state();
  for (size_t i = 0; i < entries.size(); ++i) {
    const StateEntry& entry = entries[i];
    const auto found = values.find(entry.name);
    if (found == values.end()) {
      continue;
    }
    if (found->second.sizes() != entry.value.sizes()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "'", entry.name, "' has shape ", ShapeString(entry.value.sizes().vec()),
          " in the model and ", ShapeString(found->second.sizes().vec()), " in the trainer"));
    }
    if (entry.is_parameter) {
      replica.BindEntry(i, found->second.to(device));
    } else {
      entry.value.copy_(found->second);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostModel>> HostModel::CopyOf(const ReplicaSet& source) {
  std::unique_ptr<Replica> copy;
  BRAID_RETURN_IF_ERROR(
      RunOnEach(source.first_workers(1), Phase::kLoad, [&](size_t) -> absl::Status {
        BRAID_ASSIGN_OR_RETURN(copy, source.replica(0).CloneStage(StageRole(), c10::kCPU));
        return absl::OkStatus();
      }));
  return std::unique_ptr<HostModel>(new HostModel(std::move(copy)));
}

absl::StatusOr<std::unique_ptr<Replica>> HostModel::With(const std::vector<StateEntry>& state,
                                                         c10::Device device) const {
  std::unique_ptr<Replica> replica;
  BRAID_RETURN_IF_ERROR(CatchTorch([&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(replica, replica_->CloneStage(StageRole(), device));
    return SetState(state, device, *replica);
  }));
  return replica;
}

absl::StatusOr<std::unique_ptr<Replica>> HostModel::With(
    const std::vector<StateTensor>& state) const {
  std::vector<StateEntry> entries;
  for (const StateTensor& entry : state) {
    entries.push_back({entry.tensor.name, View(entry.tensor), entry.is_parameter});
  }
  return With(entries, c10::kCPU);
}

}  // namespace braid
