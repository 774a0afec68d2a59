#include "server/training/trainer/paged_trainer.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/base/wait_for.h"
#include "server/serving/load_model.h"
#include "server/storage/checkpoint_store.h"
#include "server/telemetry/log.h"
#include "server/training/trainer/trainer.h"

namespace braid {
namespace {

// Equals the limit of operations in a trainer's queue.
constexpr size_t kMaxWaitingCalls = 64;

}  // namespace

PagedTrainer::PagedTrainer(LoadedTrainer loaded, Load load, TaskPool* pool)
    : name_(loaded.trainer->spec().name),
      model_(loaded.trainer->spec().model),
      idle_timeout_(loaded.trainer->spec().idle_timeout),
      load_(std::move(load)),
      place_(Place::kMemory),
      loaded_(std::move(loaded)),
      info_complete_(true),
      last_used_(absl::Now()),
      queue_(pool) {}

PagedTrainer::PagedTrainer(TrainerInfo info, Load load, TaskPool* pool)
    : name_(info.spec.name),
      model_(info.spec.model),
      idle_timeout_(info.spec.idle_timeout),
      load_(std::move(load)),
      place_(Place::kDisk),
      info_(std::move(info)),
      info_complete_(false),
      last_used_(absl::Now()),
      queue_(pool) {}

PagedTrainer::~PagedTrainer() = default;

absl::Status PagedTrainer::Wait(Use* use) {
  if (place_ == Place::kGone) {
    return absl::NotFoundError(absl::StrCat("trainer '", name_, "' has been deleted"));
  }
  if (waiting_.size() >= kMaxWaitingCalls) {
    return absl::ResourceExhaustedError(
        absl::StrCat("trainer '", name_, "' has ", waiting_.size(),
                     " calls that wait until it has been read from disk; send fewer at a time"));
  }
  waiting_.push_back(std::move(*use));
  if (place_ == Place::kDisk) {
    place_ = Place::kComing;
    queue_.Post([this] { LoadNow(); });
  }
  return absl::OkStatus();
}

void PagedTrainer::Call(Use use) {
  Trainer* trainer = nullptr;
  absl::Status status;
  {
    const absl::MutexLock lock(&mu_);
    last_used_ = absl::Now();
    if (place_ == Place::kMemory) {
      trainer = Enter();
    } else {
      status = Wait(&use);
    }
  }
  if (trainer != nullptr) {
    use(trainer);
    Leave();
  } else if (!status.ok()) {
    use(status);
  }
}

bool PagedTrainer::CallInMemory(Use use) {
  Trainer* trainer = nullptr;
  {
    const absl::MutexLock lock(&mu_);
    if (place_ != Place::kMemory) {
      return false;
    }
    trainer = Enter();
  }
  use(trainer);
  Leave();
  return true;
}

Trainer* PagedTrainer::Enter() {
  ++users_;
  return loaded_.trainer.get();
}

void PagedTrainer::Leave() {
  const absl::MutexLock lock(&mu_);
  --users_;
}

absl::Status PagedTrainer::Retire() {
  const auto in_use = [this] {
    return absl::FailedPreconditionError(absl::StrCat("trainer '", name_, "' is in use"));
  };
  Trainer* trainer = nullptr;
  {
    const absl::MutexLock lock(&mu_);
    if (place_ == Place::kDisk) {
      place_ = Place::kGone;
      return absl::OkStatus();
    }
    if (place_ != Place::kMemory) {
      return in_use();
    }
    trainer = Enter();
  }
  const absl::Cleanup leave = [this] { Leave(); };
  // The checkpoint may be of the state before a Forward whose graph is kept.
  const int64_t applied = trainer->info().applied_sequence;
  BRAID_RETURN_IF_ERROR(WaitFor<absl::StatusOr<CheckpointInfo>>([&](auto done) {
                          trainer->SaveCheckpoint(std::move(done));
                        }).status());
  return trainer->RetireAt(applied) ? absl::OkStatus() : in_use();
}

bool PagedTrainer::PageOut() {
  const absl::MutexLock lock(&mu_);
  if (place_ == Place::kMemory) {
    if (load_ == nullptr || users_ > 0 || !loaded_.trainer->idle()) {
      return false;
    }
    place_ = Place::kLeaving;
    queue_.Post([this] { SaveNow(); });
  }
  return place_ == Place::kLeaving;
}

void PagedTrainer::SaveNow() {
  LoadedTrainer loaded;
  {
    const absl::MutexLock lock(&mu_);
    loaded = loaded_;
  }
  const auto saved = WaitFor<absl::StatusOr<CheckpointInfo>>(
      [&](auto done) { loaded.trainer->SaveLast(std::move(done)); });
  if (!saved.ok()) {
    Log(LogModule::kTraining)
        .error("trainer '{}': stays in memory, its state cannot be saved: {}", name_,
               std::string(saved.status().message()));
    Arrive(loaded);
    return;
  }
  {
    const absl::MutexLock lock(&mu_);
    info_ = loaded.trainer->info();
    info_.memory.clear();
    info_.on_disk = true;
    loaded_ = {};
  }
  // Ends the use of its directory before that is read again.
  loaded = {};
  bool wanted = false;
  {
    const absl::MutexLock lock(&mu_);
    wanted = !waiting_.empty();
    place_ = wanted ? Place::kComing : Place::kDisk;
  }
  if (wanted) {
    LoadNow();
  }
}

void PagedTrainer::LoadNow() {
  absl::StatusOr<LoadedTrainer> loaded = load_();
  if (loaded.ok()) {
    Arrive(*loaded);
    return;
  }
  const absl::Status& status = loaded.status();
  Log(LogModule::kTraining)
      .error("trainer '{}': cannot be read: {}", name_, std::string(status.message()));
  // The trainer exists, even if its model does not.
  const absl::Status error(
      absl::IsNotFound(status) ? absl::StatusCode::kFailedPrecondition : status.code(),
      absl::StrCat("trainer '", name_, "' cannot be read from disk: ", status.message()));
  std::vector<Use> failed;
  {
    const absl::MutexLock lock(&mu_);
    place_ = Place::kDisk;
    failed.swap(waiting_);
  }
  for (Use& use : failed) {
    use(error);
  }
}

void PagedTrainer::Arrive(const LoadedTrainer& loaded) {
  {
    const absl::MutexLock lock(&mu_);
    loaded_ = loaded;
    info_complete_ = true;
  }
  while (true) {
    std::vector<Use> calls;
    {
      const absl::MutexLock lock(&mu_);
      if (waiting_.empty()) {
        place_ = Place::kMemory;
        last_used_ = absl::Now();
        return;
      }
      calls.swap(waiting_);
    }
    for (Use& use : calls) {
      use(loaded.trainer.get());
    }
  }
}

TrainerInfo PagedTrainer::info() const {
  const absl::MutexLock lock(&mu_);
  return loaded_.trainer != nullptr ? loaded_.trainer->info() : info_;
}

bool PagedTrainer::has_info() const {
  const absl::MutexLock lock(&mu_);
  return info_complete_;
}

std::vector<DeviceMemory> PagedTrainer::memory() const {
  const absl::MutexLock lock(&mu_);
  return loaded_.trainer != nullptr ? loaded_.trainer->state().memory : std::vector<DeviceMemory>();
}

TrainerState PagedTrainer::state() const {
  const absl::MutexLock lock(&mu_);
  if (loaded_.trainer != nullptr) {
    return loaded_.trainer->state();
  }
  return {name_,      model_,   /*failed=*/false, /*on_disk=*/true,
          info_.step, info_.lr, info_.devices,    /*memory=*/{}};
}

absl::Time PagedTrainer::last_used() const {
  const absl::MutexLock lock(&mu_);
  return loaded_.trainer != nullptr ? std::max(last_used_, loaded_.trainer->last_used())
                                    : last_used_;
}

}  // namespace braid
