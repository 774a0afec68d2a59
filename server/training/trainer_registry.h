// All trainers of the server, by name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/base/task_thread.h"
#include "server/batching/served_models.h"
#include "server/telemetry/metrics.h"
#include "server/training/operation.h"
#include "server/training/trainer_spec.h"

namespace braid {

class Trainer;

// Thread-safe. Nothing here blocks: creating and deleting happen on a thread of the registry's own.
class TrainerRegistry {
 public:
  using InfoDone = absl::AnyInvocable<void(absl::StatusOr<TrainerInfo>)>;
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // `models` and `metrics` outlive the registry.
  TrainerRegistry(ServedModels* models, Metrics* metrics);
  ~TrainerRegistry();

  // Creates a trainer; an empty name is the model's. NOT_FOUND for an unknown model, ALREADY_EXISTS
  // for a name that is taken, unless `request_id` says that it was this very call that took it,
  // INVALID_ARGUMENT naming the field that is wrong.
  void Create(TrainerSpec spec, InfoDone done);
  // Waits for the trainer's running operation. NOT_FOUND if there is none of that name.
  void Delete(std::string name, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // As Trainer's; NOT_FOUND if there is none of that name.
  void Submit(absl::string_view name, Operation operation, OperationDone done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GetState(absl::string_view name, StateDone done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<TrainerInfo> Get(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mu_);
  // By name.
  std::vector<TrainerInfo> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::StatusOr<TrainerInfo> CreateNow(TrainerSpec spec) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DeleteNow(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Trainer*> Find(absl::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ServedModels* const models_;
  Metrics* const metrics_;

  mutable absl::Mutex mu_;
  std::map<std::string, std::unique_ptr<Trainer>, std::less<>> trainers_ ABSL_GUARDED_BY(mu_);

  // Last member: joined first.
  TaskThread thread_;
};

}  // namespace braid
