#include "server/devices/collectives.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/devices/cuda_backend.h"
#include "server/devices/run_on.h"
#include "server/devices/worker.h"

namespace braid {
namespace {

// Held while NCCL is initialized, given a collective or destroyed.
ABSL_CONST_INIT absl::Mutex one_at_a_time(absl::kConstInit);

std::string NamesOf(const std::vector<Worker*>& workers) {
  return absl::StrJoin(workers, ", ", [](std::string* out, const Worker* worker) {
    absl::StrAppend(out, worker->name());
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> Collectives::Create(std::vector<Worker*> workers,
                                                                 CudaBackend& cuda,
                                                                 const Options& options) {
  std::vector<int> gpus;
  for (const Worker* worker : workers) {
    gpus.push_back(worker->torch_device().index());
  }
  std::unique_ptr<NcclClique> clique;
  {
    const absl::MutexLock lock(&one_at_a_time);
    BRAID_RETURN_IF_ERROR(CatchTorch([&]() -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(clique, cuda.MakeNcclClique(gpus));
      return absl::OkStatus();
    }));
  }
  return std::unique_ptr<Collectives>(
      new Collectives(std::move(workers), std::move(clique), options));
}

Collectives::Collectives(std::vector<Worker*> workers, std::unique_ptr<NcclClique> clique,
                         const Options& options)
    : workers_(std::move(workers)),
      options_(options),
      clique_(std::move(clique)),
      thread_([this] { Watch(); }) {
  pthread_setname_np(thread_.native_handle(), "collectives");
}

Collectives::~Collectives() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
    stopped_.Signal();
  }
  thread_.join();
  const absl::MutexLock lock(&one_at_a_time);
  clique_.reset();
}

absl::Status Collectives::Broadcast(const std::vector<at::Tensor>& tensors) {
  return Run(CollectiveKind::kBroadcast, tensors);
}

absl::Status Collectives::Reduce(const std::vector<at::Tensor>& tensors) {
  return Run(CollectiveKind::kReduce, tensors);
}

absl::Status Collectives::AllReduce(const std::vector<at::Tensor>& tensors) {
  return Run(CollectiveKind::kAllReduce, tensors);
}

absl::Status Collectives::MarkReady(size_t rank, size_t index) {
  return CatchTorch([&] { return clique_->MarkReady(rank, index); });
}

absl::Status Collectives::BeginSum(size_t index, const std::vector<at::Tensor>& tensors, bool all) {
  const absl::MutexLock lock(&one_at_a_time);
  BRAID_RETURN_IF_ERROR(CatchTorch([&] { return clique_->FollowReady(index); }));
  return Begin(all ? CollectiveKind::kAllReduce : CollectiveKind::kReduce, tensors);
}

absl::Status Collectives::EndSums(size_t rank) { return Wait(rank); }

absl::Status Collectives::Run(CollectiveKind kind, const std::vector<at::Tensor>& tensors) {
  const absl::MutexLock lock(&one_at_a_time);
  const absl::Time start = absl::Now();
  BRAID_RETURN_IF_ERROR(CatchTorch([&] { return clique_->FollowReady(/*index=*/0); }));
  BRAID_RETURN_IF_ERROR(Begin(kind, tensors));
  absl::Status status;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    status.Update(Wait(rank));
  }
  {
    const absl::MutexLock known(&mu_);
    running_ = !status.ok();
  }
  const Phase phase = kind == CollectiveKind::kBroadcast ? Phase::kBroadcast : Phase::kReduce;
  for (Worker* worker : workers_) {
    if (worker->name() != DeviceOfThread()) {  // which measures itself
      worker->AddBusy(phase, absl::Now() - start);
    }
  }
  return status;
}

absl::Status Collectives::Begin(CollectiveKind kind, const std::vector<at::Tensor>& tensors) {
  {
    const absl::MutexLock lock(&mu_);
    BRAID_RETURN_IF_ERROR(aborted_);
    ++begun_;
    beginning_ = true;
    running_ = true;
  }
  absl::Status status = CatchTorch([&] { return clique_->Begin(kind, tensors); });
  const absl::MutexLock lock(&mu_);
  beginning_ = false;
  if (!status.ok() && !absl::IsUnimplemented(status)) {
    fault_.Update(status);  // some ranks may have begun, and wait for the others
  }
  return aborted_.ok() ? status : aborted_;
}

absl::Status Collectives::Wait(size_t rank) {
  const absl::Status ended = CatchTorch([&] { return clique_->Wait(rank); });
  const absl::MutexLock lock(&mu_);
  return aborted_.ok() ? ended : aborted_;
}

void Collectives::Watch() {
  uint64_t seen = 0;
  absl::Duration lasted;  // since a collective has begun
  while (true) {
    uint64_t begun = 0;
    {
      const absl::MutexLock lock(&mu_);
      if (!stop_) {
        stopped_.WaitWithTimeout(&mu_, options_.interval);
      }
      if (stop_) {
        return;
      }
      begun = begun_;
    }
    lasted = begun == std::exchange(seen, begun) ? lasted + options_.interval : absl::Duration();
    const absl::StatusOr<bool> running = Look();
    if (!running.ok()) {
      return Abort(running.status());
    }
    if (!*running) {
      lasted = absl::ZeroDuration();
    } else if (lasted >= options_.deadline) {
      return Abort(absl::DeadlineExceededError(
          absl::StrCat("it has not ended within ", absl::FormatDuration(options_.deadline))));
    }
  }
}

absl::StatusOr<bool> Collectives::Look() {
  uint64_t begun = 0;
  {
    const absl::MutexLock lock(&mu_);
    BRAID_RETURN_IF_ERROR(fault_);
    if (!running_ || beginning_) {
      return running_;  // what is just beginning may have nothing under way yet
    }
    begun = begun_;
  }
  bool running = false;
  BRAID_RETURN_IF_ERROR(CatchTorch([&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(running, clique_->Running());
    return absl::OkStatus();
  }));
  const absl::MutexLock lock(&mu_);
  running_ = running || begun_ != begun;
  return running_;
}

void Collectives::Abort(const absl::Status& why) {
  const absl::Status lost = absl::UnavailableError(
      absl::StrCat("a collective over ", NamesOf(workers_), " failed: ", why.message()));
  {
    const absl::MutexLock lock(&mu_);
    aborted_ = lost;
  }
  for (Worker* worker : workers_) {
    worker->Lose(lost);
  }
  clique_->Abort();
}

}  // namespace braid
