// A Communicator over GPUs with NCCL, in which no collective lasts for ever.
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

// In the whole process one thread at a time makes, destroys or begins collectives. Two collectives
// that begin in another order on each GPU would wait for each other, and so would one that waits
// for a GPU on which another thread initializes NCCL.
//
// A thread of its own watches what is under way. If a collective fails or does not end in time, for
// example because a GPU is lost, it aborts all of them and marks the workers' devices as lost:
// whoever waits gets UNAVAILABLE, and nothing begins any more.
class Collectives final : public Communicator {
 public:
  struct Options {
    // From the begin of the last collective until all have ended.
    absl::Duration deadline = absl::Minutes(2);
    // How often the watching thread looks. The deadline counts looks, so that a process that was
    // suspended is not taken for a lost GPU.
    absl::Duration interval = absl::Milliseconds(100);
  };

  // `workers`: each on a GPU of its own, the primary's first; they outlive the object.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(std::vector<Worker*> workers,
                                                             CudaBackend& cuda,
                                                             const Options& options);
  ~Collectives() override;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  absl::Status Broadcast(const std::vector<at::Tensor>& tensors) override;
  absl::Status Reduce(const std::vector<at::Tensor>& tensors) override;
  absl::Status AllReduce(const std::vector<at::Tensor>& tensors) override;
  absl::Status MarkReady(size_t rank, size_t index) override;
  absl::Status BeginSum(size_t index, const std::vector<at::Tensor>& tensors, bool all) override;
  absl::Status EndSums(size_t rank) override;

 private:
  Collectives(std::vector<Worker*> workers, std::unique_ptr<NcclClique> clique,
              const Options& options);

  // Begins a collective and waits for it.
  absl::Status Run(CollectiveKind kind, const std::vector<at::Tensor>& tensors);
  // Both under the lock of all collectives.
  absl::Status Begin(CollectiveKind kind, const std::vector<at::Tensor>& tensors)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Wait(size_t rank) ABSL_LOCKS_EXCLUDED(mu_);

  // The watching thread.
  void Watch() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether something is under way, as of the last look.
  absl::StatusOr<bool> Look() ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Immutable after construction.
  const std::vector<Worker*> workers_;
  const Options options_;
  std::unique_ptr<NcclClique> clique_;

  absl::Mutex mu_;
  absl::CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t begun_ ABSL_GUARDED_BY(mu_) = 0;      // collectives
  bool beginning_ ABSL_GUARDED_BY(mu_) = false;  // a thread is in NcclClique::Begin()
  bool running_ ABSL_GUARDED_BY(mu_) = false;    // not all that have begun are known to have ended
  absl::Status fault_ ABSL_GUARDED_BY(mu_);      // of a collective that could not begin
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);    // why, once it is

  // Last member: joined first.
  std::thread thread_;
};

}  // namespace braid
