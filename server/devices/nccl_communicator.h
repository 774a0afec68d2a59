// Communicator over GPUs with NCCL, with a deadline for every collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/devices/communicator.h"
#include "server/devices/nccl_clique.h"

namespace braid {

class CudaBackend;
class Worker;

// In the whole process, one thread at a time creates, destroys or starts collectives
// (CudaBackend::nccl_mutex()). Otherwise two collectives that start in a different order on each
// GPU would deadlock, and so would a collective and a thread that initializes NCCL.
//
// Several trainers on the same workers share one object. Each call starts a collective on all ranks
// at once and the streams keep that order, so collectives of different trainers run one after the
// other.
//
// A watchdog thread checks the collectives in flight. If one fails or misses its deadline, for
// example because a GPU is lost, the watchdog aborts all of them and marks the workers as lost.
// Callers then get UNAVAILABLE, and no further collective starts.
class NcclCommunicator final : public Communicator {
 public:
  struct Options {
    // Time from the start of the last collective until all have ended.
    absl::Duration deadline = absl::Minutes(2);
    // Interval of the watchdog. The deadline counts intervals, so that a suspended process is not
    // taken for a lost GPU.
    absl::Duration interval = absl::Milliseconds(100);
  };

  // Each of `workers` has a GPU of its own; the first is the primary. Workers and `cuda` must
  // outlive the object. Blocks while NCCL is initialized.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(std::vector<Worker*> workers,
                                                                  CudaBackend& cuda,
                                                                  const Options& options);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  absl::Status Broadcast(const std::vector<at::Tensor>& tensors) override;
  absl::Status Reduce(const std::vector<at::Tensor>& tensors) override;
  absl::Status AllReduce(const std::vector<at::Tensor>& tensors) override;
  absl::Status MarkReady(size_t rank, size_t index) override;
  absl::Status BeginSum(size_t index, const std::vector<at::Tensor>& tensors, bool all) override;
  absl::Status EndSums(size_t rank) override;

  // Returns true once the watchdog has aborted the collectives. Thread-safe.
  bool aborted() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  NcclCommunicator(std::vector<Worker*> workers, absl::Mutex& nccl_mu,
                   std::unique_ptr<NcclClique> clique, const Options& options);

  // Starts a collective and waits for it.
  absl::Status Run(CollectiveKind kind, const std::vector<at::Tensor>& tensors)
      ABSL_LOCKS_EXCLUDED(nccl_mu_);
  absl::Status Begin(CollectiveKind kind, const std::vector<at::Tensor>& tensors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(nccl_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Wait(size_t rank) ABSL_LOCKS_EXCLUDED(mu_);

  // Body of the watchdog thread.
  void Watch() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if collectives are in flight, or the error of one that failed.
  absl::StatusOr<bool> Poll() ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const std::vector<Worker*> workers_;
  const Options options_;
  absl::Mutex& nccl_mu_;  // CudaBackend::nccl_mutex()
  std::unique_ptr<NcclClique> clique_;

  mutable absl::Mutex mu_;
  absl::CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t begun_ ABSL_GUARDED_BY(mu_) = 0;      // number of collectives
  bool beginning_ ABSL_GUARDED_BY(mu_) = false;  // a thread is in NcclClique::Begin()
  bool running_ ABSL_GUARDED_BY(mu_) = false;    // some collective may be in flight
  absl::Status fault_ ABSL_GUARDED_BY(mu_);      // error of a collective that failed to start
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);    // reason of the abort; OK before it

  // Last member: joined first.
  std::thread watchdog_;
};

}  // namespace braid
