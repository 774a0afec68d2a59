// A part of the model in training: its replicas, their flat parameters and gradients, the
// optimizer.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/devices/communicator.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/replica_set.h"
#include "server/training/optim/optimizer.h"
#include "server/training/step/placement.h"

namespace braid {

// How the replicas of a stage reach each other's memory.
enum class Link {
  kSharedMemory,  // all on the CPU: each worker adds, updates and copies a slice of it all
  kNccl,          // all on GPUs of their own
  kCopies,        // any other mix: the primary's worker does it
};

Link LinkOf(const PlacedStage& placed);

// Thread-compatible. What it holds is touched on the workers alone, replica r's by worker r unless
// a method says otherwise.
class Stage {
 public:
  // Flattens the replicas' parameters. `share_parameters`: all replicas have the primary's memory;
  // for kSharedMemory alone. Blocks.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(PlacedStage placed, bool share_parameters);

  const std::string& path() const { return path_; }
  size_t size() const { return replicas_.size(); }
  Replica& replica(size_t r) const { return replicas_.replica(r); }
  Worker& worker(size_t r) const { return replicas_.worker(r); }
  const std::vector<Worker*>& workers() const { return replicas_.workers(); }
  Link link() const { return link_; }
  bool shares_parameters() const { return share_parameters_; }
  Communicator& communicator() { return *communicator_; }
  // Before the barrier that precedes a collective: the collective begins after what replica r's
  // worker has queued until now.
  absl::Status MarkReady(size_t r) {
    return communicator_ == nullptr ? absl::OkStatus() : communicator_->MarkReady(r, /*index=*/0);
  }
  FlatParameters& flat(size_t r) { return flat_[r]; }
  const FlatParameters& flat(size_t r) const { return flat_[r]; }
  // Tensor `buffer` of what `member` gives, for every replica: FlatParameters::gradients.
  std::vector<at::Tensor> OfAll(const std::vector<at::Tensor>& (FlatParameters::*member)() const,
                                size_t buffer) const;
  // The parameters' names as the whole model has them.
  std::vector<std::string> ParameterNames() const;
  // Which parameters one of the first `replicas` replicas has reached.
  std::vector<bool> Reached(size_t replicas) const;

  // Buffers: each forward starts from the committed ones, on every replica; the primary's pass
  // makes the next.
  bool has_buffers() const { return !buffers_.empty(); }
  // Gives replica r the committed ones.
  void ResetBuffers(size_t r) { replicas_.replica(r).SetBuffers(buffers_); }
  // The same between the pieces of a batch, where none are committed: by the primary's worker those
  // that it has now are held, and the other replicas take them.
  void HoldBuffers();
  void TakeHeldBuffers(size_t r) { replicas_.replica(r).SetBuffers(held_buffers_); }
  // Whether those that the primary has now can be committed. FAILED_PRECONDITION if the model gave
  // one another shape or datatype.
  absl::Status CheckBuffers() const;
  // Whether those that are finite as they are committed are so as the primary has them now.
  bool BuffersStayFinite() const;
  // By the primary's worker: commits what the primary has now.
  void CommitBuffers();
  // By the primary's worker, before a commit that may have to be looked behind: copies those that
  // are committed. ShowEarlierBuffers() gives the primary these, until ResetBuffers(0).
  void KeepEarlierBuffers();
  void ShowEarlierBuffers() { replicas_.replica(0).SetBuffers(earlier_buffers_); }

  // What replica r takes: parameters, gradients, buffers, optimizer state.
  int64_t bytes(size_t r) const;

  // The primary's entries by their names in the whole model, as they are committed.
  std::vector<StateEntry> state() const;

  // The primary's optimizer counts; the others have one only while they make their own updates.
  // `groups`: of this stage's parameters.
  void MakeOptimizer(const OptimizerSpec& spec, const ParameterGroups& groups);
  Optimizer& optimizer(size_t r) const { return *optimizers_[r]; }
  // Gives replica r one in the state of the primary's, by its own worker.
  absl::Status CopyOptimizer(size_t r);

 private:
  Stage(PlacedStage placed, bool share_parameters)
      : link_(LinkOf(placed)),
        share_parameters_(share_parameters),
        path_(std::move(placed.path)),
        replicas_(std::move(placed.replicas)),
        communicator_(std::move(placed.communicator)) {}

  const Link link_;
  const bool share_parameters_;
  const std::string path_;
  const ReplicaSet replicas_;
  const std::unique_ptr<Communicator> communicator_;  // kNccl
  std::vector<FlatParameters> flat_;
  // On the primary device.
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> held_buffers_;
  std::vector<at::Tensor> earlier_buffers_;
  OptimizerSpec optimizer_spec_;
  std::optional<ParameterGroups> groups_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
};

}  // namespace braid
