#include "server/devices/nccl_communicator.h"

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

std::string NamesOf(const std::vector<Worker*>& workers) {
  return absl::StrJoin(workers, ", ", [](std::string* out, const Worker* worker) {
    absl::StrAppend(out, worker->name());
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    std::vector<Worker*> workers, CudaBackend& cuda, const Options& options) {
  std::vector<int> gpus;
  for (const Worker* worker : workers) {
    gpus.push_back(worker->torch_device().index());
  }
  std::unique_ptr<NcclClique> clique;
  {
    const absl::MutexLock lock(&cuda.nccl_mutex());
    BRAID_RETURN_IF_ERROR(CatchTorch([&]() -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(clique, cuda.MakeNcclClique(gpus));
      return absl::OkStatus();
    }));
  }
  return std::unique_ptr<NcclCommunicator>(
      new NcclCommunicator(std::move(workers), cuda.nccl_mutex(), std::move(clique), options));
}

NcclCommunicator::NcclCommunicator(std::vector<Worker*> workers, absl::Mutex& nccl_mu,
                                   std::unique_ptr<NcclClique> clique, const Options& options)
    : workers_(std::move(workers)),
      options_(options),
      nccl_mu_(nccl_mu),
      clique_(std::move(clique)),
      watchdog_([this] { Watch(); }) {
  pthread_setname_np(watchdog_.native_handle(), "collectives");
}

NcclCommunicator::~NcclCommunicator() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
    stopped_.Signal();
  }
  watchdog_.join();
  const absl::MutexLock lock(&nccl_mu_);
  clique_.reset();
}

absl::Status NcclCommunicator::Broadcast(const std::vector<at::Tensor>& tensors) {
  return Run(CollectiveKind::kBroadcast, tensors);
}

absl::Status NcclCommunicator::Reduce(const std::vector<at::Tensor>& tensors) {
  return Run(CollectiveKind::kReduce, tensors);
}

absl::Status NcclCommunicator::AllReduce(const std::vector<at::Tensor>& tensors) {
  return Run(CollectiveKind::kAllReduce, tensors);
}

absl::Status NcclCommunicator::MarkReady(size_t rank, size_t index) {
  return CatchTorch([&] { return clique_->MarkReady(rank, index); });
}

absl::Status NcclCommunicator::BeginSum(size_t index, const std::vector<at::Tensor>& tensors,
                                        bool all) {
  const absl::MutexLock lock(&nccl_mu_);
  BRAID_RETURN_IF_ERROR(CatchTorch([&] { return clique_->FollowReady(index); }));
  return Begin(all ? CollectiveKind::kAllReduce : CollectiveKind::kReduce, tensors);
}

absl::Status NcclCommunicator::EndSums(size_t rank) { return Wait(rank); }

absl::Status NcclCommunicator::Run(CollectiveKind kind, const std::vector<at::Tensor>& tensors) {
  const absl::MutexLock lock(&nccl_mu_);
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
    if (worker->name() != CurrentDeviceName()) {  // the caller's worker measures its own time
      worker->AddBusy(phase, absl::Now() - start);
    }
  }
  return status;
}

absl::Status NcclCommunicator::Begin(CollectiveKind kind, const std::vector<at::Tensor>& tensors) {
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
    fault_.Update(status);  // some ranks may have started and wait for the others
  }
  return aborted_.ok() ? status : aborted_;
}

absl::Status NcclCommunicator::Wait(size_t rank) {
  const absl::Status ended = CatchTorch([&] { return clique_->Wait(rank); });
  const absl::MutexLock lock(&mu_);
  return aborted_.ok() ? ended : aborted_;
}

bool NcclCommunicator::aborted() const {
  const absl::MutexLock lock(&mu_);
  return !aborted_.ok();
}

void NcclCommunicator::Watch() {
  uint64_t seen = 0;
  absl::Duration lasted;  // time since the last collective started
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
    const absl::StatusOr<bool> running = Poll();
    if (!running.ok()) {
      return Abort(running.status());
    }
    if (!*running) {
      lasted = absl::ZeroDuration();
    } else if (lasted >= options_.deadline) {
      return Abort(absl::DeadlineExceededError(
          absl::StrCat("it did not end within ", absl::FormatDuration(options_.deadline))));
    }
  }
}

absl::StatusOr<bool> NcclCommunicator::Poll() {
  uint64_t begun = 0;
  {
    const absl::MutexLock lock(&mu_);
    BRAID_RETURN_IF_ERROR(fault_);
    if (!running_ || beginning_) {
      return running_;  // a collective that is being started may not be in flight yet
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

void NcclCommunicator::Abort(const absl::Status& why) {
  const absl::Status lost = absl::UnavailableError(
      absl::StrCat("a collective over ", NamesOf(workers_), " failed: ", why.message()));
  {
    const absl::MutexLock lock(&mu_);
    aborted_ = lost;
  }
  for (Worker* worker : workers_) {
    worker->MarkLost(lost);
  }
  clique_->Abort();
}

}  // namespace braid
