// One stage of a model in training: its replicas, their flat parameters and gradients, the
// optimizer.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/devices/communicator.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/replica_set.h"
#include "server/training/optim/optimizer.h"
#include "server/training/step/flat_buffers.h"
#include "server/training/step/placement.h"

namespace braid {

// How the replicas of a stage exchange gradients and parameters.
enum class Link {
  kSharedMemory,  // all on the CPU: each worker adds, updates and copies one slice of all replicas
  kNccl,          // each on a GPU of its own: NCCL collectives
  kCopies,        // any other mix: the primary's worker copies and adds
};

Link LinkOf(const PlacedStage& placed);

// Owned by DataParallel. Thread-compatible: its tensors are used on the workers only, replica r's
// by worker r unless a method says otherwise.
class Stage {
 public:
  // Flattens the replicas' parameters and freezes those of frozen groups. `groups`: of this stage's
  // parameters. `share_parameters`: all replicas use the primary's parameter memory; requires
  // kSharedMemory. Blocks.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(PlacedStage placed,
                                                       const ParameterGroups& groups,
                                                       bool share_parameters);

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
  // Returns tensor `buffer` of every replica's `member` (FlatParameters::gradients or values).
  std::vector<at::Tensor> OfAll(const std::vector<at::Tensor>& (FlatParameters::*member)() const,
                                size_t buffer) const;
  // Returns the names of the trainable parameters, frozen groups included, in the whole model.
  std::vector<std::string> ParameterNames() const;
  // Returns true if a parameter is not frozen.
  bool trains() const;
  // Returns for each parameter whether one of the first `replicas` replicas has a gradient for it.
  std::vector<bool> Reached(size_t replicas) const;

  // Buffers. Each forward pass starts from the committed buffers on every replica; the primary's
  // forward pass computes the next ones. Each method below moves one tensor per datatype.
  bool has_buffers() const { return !buffers_.empty(); }
  // Copies the committed buffers to replica r.
  void ResetBuffers(size_t r) { SetBuffers(r, buffers_); }
  // Micro-batches pass on buffers that are not committed yet: the primary's worker saves the
  // current ones, and the other replicas copy them.
  void SaveMicroBatchBuffers() { micro_batch_buffers_ = FlatBuffers(replica(0).buffers()); }
  void TakeMicroBatchBuffers(size_t r) { SetBuffers(r, micro_batch_buffers_); }
  // FAILED_PRECONDITION if the model changed the shape or datatype of one of the primary's buffers.
  absl::Status CheckBuffers() const;
  // Returns false if a buffer that is finite in the committed state is not finite in the primary's
  // current state. By the primary's worker, which waits for its device.
  bool BuffersStayFinite() const;
  // Commits the primary's current buffers. By the primary's worker.
  void CommitBuffers();
  // Saves the committed buffers before a commit that a checkpoint may have to undo. By the
  // primary's worker. RestoreEarlierBuffers() copies them to the primary, until ResetBuffers(0).
  void KeepEarlierBuffers() { earlier_buffers_ = FlatBuffers(buffers_.views()); }
  void RestoreEarlierBuffers() { SetBuffers(0, earlier_buffers_); }

  // Returns the bytes of replica r: parameters, gradients, buffers, optimizer state. Frozen
  // parameters do not count: their memory is that of the served version. Parameters that replicas
  // share count for the primary.
  int64_t bytes(size_t r) const;

  // Returns the primary's committed state_dict by names in the whole model.
  std::vector<StateEntry> state() const;
  // Returns the parameters of replica r, by names in the whole model, in memory that keeps their
  // values: the replica moves to other memory before they change. By replica r's worker.
  std::vector<StateEntry> ShareParameters(size_t r) const;
  // Sets parameters of replica r to copies of `values`, which may be on any device. One value per
  // entry of the replica's state; undefined for entries that stay. By replica r's worker, after
  // UnshareParameters().
  void SetParameters(size_t r, const std::vector<at::Tensor>& values);
  // Call before parameters change, by replica r's worker.
  void UnshareParameters(size_t r);
  // Returns the part of state() that updates change: parameters that are not frozen, each under its
  // first name.
  std::vector<StateEntry> trained_state() const;
  // Returns the part of state() that training changes: trained_state() and the buffers.
  std::vector<StateEntry> changing_state() const;
  // Returns changing_state() in memory that keeps the values, as ShareParameters(). By the
  // primary's worker.
  std::vector<StateEntry> ShareChangingState() const;

  // Creates the primary's optimizer, which holds the optimizer state. The other replicas have an
  // optimizer only while they make their own updates.
  void MakeOptimizer(const OptimizerSpec& spec);
  Optimizer& optimizer(size_t r) const { return *optimizers_[r]; }
  // Creates replica r's optimizer as a copy of the primary's. By replica r's worker.
  absl::Status CopyOptimizer(size_t r);

 private:
  Stage(PlacedStage placed, const ParameterGroups& groups, bool share_parameters)
      : link_(LinkOf(placed)),
        share_parameters_(share_parameters),
        groups_(groups),
        path_(std::move(placed.path)),
        replicas_(std::move(placed.replicas)),
        communicator_(std::move(placed.communicator)) {}

  // Returns `value`, a parameter of replica r, in memory that keeps its values.
  at::Tensor ShareValue(size_t r, const at::Tensor& value) const;
  // Returns the flat buffer that `parameter` of replica r's state is in; nullptr if it is frozen.
  const at::Tensor* FlatValues(size_t r, const at::Tensor& parameter) const;
  void SetBuffers(size_t r, const FlatBuffers& buffers) {
    replicas_.replica(r).SetBuffers(buffers.On(worker(r).torch_device()));
  }

  const Link link_;
  const bool share_parameters_;
  const ParameterGroups groups_;
  const std::string path_;
  const ReplicaSet replicas_;
  const std::shared_ptr<Communicator> communicator_;  // kNccl
  std::vector<FlatParameters> flat_;
  // On the primary device.
  FlatBuffers buffers_;  // committed
  FlatBuffers micro_batch_buffers_;
  FlatBuffers earlier_buffers_;
  OptimizerSpec optimizer_spec_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
};

}  // namespace braid
