#include "server/training/trainer/host_model.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/devices/run_on.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

absl::Status LoadState(const std::vector<StateTensor>& state, const Replica& replica) {
  const c10::AutoGradMode no_grad(false);
  std::map<std::string, at::Tensor> values;
  for (const StateTensor& entry : state) {
    values[entry.tensor.name] = View(entry.tensor);
  }
  for (const StateEntry& entry : replica.state()) {
    const auto found = values.find(entry.name);
    if (found == values.end()) {
      continue;  // not in a trained stage
    }
    if (found->second.sizes() != entry.value.sizes()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "'", entry.name, "' has shape ", ShapeString(entry.value.sizes().vec()),
          " in the model and ", ShapeString(found->second.sizes().vec()), " in the trainer"));
    }
    entry.value.copy_(found->second);
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

absl::Status HostModel::With(const std::vector<StateTensor>& state,
                             absl::FunctionRef<absl::Status(const Replica&)> use) {
  const absl::MutexLock lock(&mu_);
  // The thread-safety analysis does not follow the lambda.
  const Replica& replica = *replica_;
  return CatchTorch([&]() -> absl::Status {
    BRAID_RETURN_IF_ERROR(LoadState(state, replica));
    return use(replica);
  });
}

}  // namespace braid
