#include "server/training/trainer_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/batching/batch_queue.h"
#include "server/training/trainer.h"

namespace braid {
namespace {

absl::Status CheckName(absl::string_view name) {
  const bool valid = !name.empty() && name.size() <= 128 && name.front() != '.' &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
                     });
  if (valid) {
    return absl::OkStatus();
  }
  return InvalidField("name",
                      absl::StrCat("'", absl::CHexEscape(Excerpt(name)),
                                   "' is no trainer's name; expected 1 to 128 letters, digits, "
                                   "'_', '-' and '.', the first no '.'"));
}

absl::Status NotFound(absl::string_view name) {
  return absl::NotFoundError(absl::StrCat("there is no trainer '", Excerpt(name), "'"));
}

}  // namespace

TrainerRegistry::TrainerRegistry(ServedModels* models, Metrics* metrics)
    : models_(models), metrics_(metrics), thread_("trainers") {}

TrainerRegistry::~TrainerRegistry() = default;

void TrainerRegistry::Create(TrainerSpec spec, InfoDone done) {
  thread_.Post([this, spec = std::move(spec), done = std::move(done)]() mutable {
    done(CreateNow(std::move(spec)));
  });
}

void TrainerRegistry::Delete(std::string name, Done done) {
  thread_.Post(
      [this, name = std::move(name), done = std::move(done)]() mutable { done(DeleteNow(name)); });
}

absl::StatusOr<TrainerInfo> TrainerRegistry::CreateNow(TrainerSpec spec) {
  if (spec.model.empty()) {
    return InvalidField("model", "is empty; expected the name of a served model");
  }
  if (spec.name.empty()) {
    spec.name = spec.model;
  }
  BRAID_RETURN_IF_ERROR(CheckName(spec.name));
  {
    const absl::MutexLock lock(&mu_);
    if (const auto found = trainers_.find(spec.name); found != trainers_.end()) {
      const Trainer& there = *found->second;
      if (!spec.request_id.empty() && there.spec().request_id == spec.request_id) {
        return there.info();
      }
      return absl::AlreadyExistsError(
          absl::StrCat("name: trainer '", spec.name, "' exists, at step ", there.info().step,
                       "; attach to it, delete it, or give the new one another name"));
    }
  }
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<BatchQueue> base,
                         models_->FindReplicas(spec.model, spec.base_version));
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                         Trainer::Create(std::move(spec), std::move(base), models_, metrics_));
  TrainerInfo info = trainer->info();
  const absl::MutexLock lock(&mu_);
  trainers_[info.spec.name] = std::move(trainer);
  return info;
}

absl::Status TrainerRegistry::DeleteNow(const std::string& name) {
  std::unique_ptr<Trainer> trainer;
  {
    const absl::MutexLock lock(&mu_);
    const auto found = trainers_.find(name);
    if (found == trainers_.end()) {
      return NotFound(name);
    }
    trainer = std::move(found->second);
    trainers_.erase(found);
  }
  trainer.reset();
  metrics_->ForgetTrainer(name);
  return absl::OkStatus();
}

void TrainerRegistry::Submit(absl::string_view name, Operation operation, OperationDone done) {
  absl::Status status;
  {
    const absl::MutexLock lock(&mu_);
    const absl::StatusOr<Trainer*> trainer = Find(name);
    if (trainer.ok()) {
      (*trainer)->Submit(std::move(operation), std::move(done));
      return;
    }
    status = trainer.status();
  }
  done(std::move(status));
}

void TrainerRegistry::GetState(absl::string_view name, StateDone done) {
  absl::Status status;
  {
    const absl::MutexLock lock(&mu_);
    const absl::StatusOr<Trainer*> trainer = Find(name);
    if (trainer.ok()) {
      (*trainer)->GetState(std::move(done));
      return;
    }
    status = trainer.status();
  }
  done(std::move(status));
}

absl::StatusOr<TrainerInfo> TrainerRegistry::Get(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Trainer* trainer, Find(name));
  return trainer->info();
}

std::vector<TrainerInfo> TrainerRegistry::List() const {
  const absl::MutexLock lock(&mu_);
  std::vector<TrainerInfo> infos;
  for (const auto& [name, trainer] : trainers_) {
    infos.push_back(trainer->info());
  }
  return infos;
}

absl::StatusOr<Trainer*> TrainerRegistry::Find(absl::string_view name) const {
  const auto found = trainers_.find(name);
  if (found == trainers_.end()) {
    return NotFound(name);
  }
  return found->second.get();
}

}  // namespace braid
