// One batch, or a piece of one, on its way through the model and back:
//
//   split → forward on all replicas, stage by stage → gather → loss → scatter its gradient →
//   backward on all replicas → flat gradients
//
// Every rank of a worker group calls the same methods in the same order, each on its own worker.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/base/host_tensor.h"
#include "server/devices/worker_group.h"
#include "server/parallel/mode.h"
#include "server/parallel/overlapped_reduce.h"
#include "server/parallel/sync_batch_norm.h"
#include "server/training/loss/objective.h"
#include "server/training/step/phase_times.h"
#include "server/training/step/rank_map.h"
#include "server/training/step/stage.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer_spec.h"

namespace braid {

// What the passes of one trainer have in common. All of it outlives them.
struct TrainedModel {
  const TrainerSpec* spec = nullptr;
  const Objective* objective = nullptr;
  const RankMap* roster = nullptr;
  std::vector<Stage*> stages;
};

// A batch as an operation brings it.
struct Batch {
  std::vector<HostTensor> inputs;
  std::vector<HostTensor> targets;  // as Objective::PickTargets() gave them; empty: no loss
  int64_t rows = 0;
  Mode mode = Mode::kTrain;
  uint64_t seed = 0;  // of the random numbers that the model draws
  double gradient_scale = 1;
  bool report_split = false;
};

class BatchPass {
 public:
  // Rows [start, start + rows) of `batch`; `groups`: where this pass finds the groups of the worker
  // group that RankGroups() asks for. `batch`, and what it points to, outlives the pass.
  BatchPass(const TrainedModel& model, const Batch& batch, int64_t start, int64_t rows,
            size_t groups);

  // One a stage: the ranks that have a chunk.
  std::vector<RankGroup> RankGroups() const;

  // Ends with a meeting. Another one is due before the batch's next piece begins.
  absl::Status Forward(WorkerGroup& worker_group, size_t rank, bool keep_graph, PhaseTimes* times);
  // The loss of these rows, weighted by their share of `whole`, what the losses divide by over the
  // whole batch; empty: these rows are all of it. Ends with a meeting.
  absl::Status Loss(WorkerGroup& worker_group, size_t rank, const std::vector<double>& whole,
                    bool with_gradient, PhaseTimes* times);
  // The client's gradients of the gathered outputs in the place of the loss's: by one thread.
  void SetOutputGradients(std::vector<at::Tensor> gradients);
  // Has Backward() sum the replicas' gradients meanwhile, by stage; nullptr: not this one's. They
  // outlive the pass.
  void ReduceMeanwhile(std::vector<OverlappedReduce*> reduces) { reduces_ = std::move(reduces); }
  // Adds to the flat gradients, or, with `hold`, keeps the gradients, until Release(). `first`:
  // what the flat gradients held counts for nothing.
  absl::Status Backward(WorkerGroup& worker_group, size_t rank, bool first, bool hold,
                        PhaseTimes* times);
  // Waits for the sums on the rank's device, also those that others began after it had failed.
  absl::Status WaitForReduces(size_t rank);
  // Adds what Backward() kept.
  void Release(size_t rank);
  // The first ones that Backward() kept, by chunk, dense and contiguous; undefined: not reached.
  const std::vector<std::vector<at::Tensor>>& held(size_t stage) const {
    return stages_[stage].held;
  }
  // The largest RangeShare() of the gradients that Backward() kept.
  double HeldShare(size_t rank) const;

  // All outputs, gathered on the output device: by the output rank, after Forward().
  absl::StatusOr<std::vector<at::Tensor>> GatherOutputs() const;

  // After Loss().
  double loss() const;
  // Whether a model's output is 0-dim, one value a chunk; the gathered shape of output `o`. After
  // Forward().
  std::vector<int64_t> gathered_shape(size_t output) const;
  size_t outputs() const { return stages_.back().outputs.front().size(); }
  int64_t rows() const { return rows_; }
  size_t chunks(size_t stage) const { return stages_[stage].split.size(); }
  // Of the last stage.
  const std::vector<int64_t>& split() const { return stages_.back().split; }
  // What chunk `chunk` of it gave of the gathered outputs: 0-dim as it was.
  std::vector<at::Tensor> ChunkOfOutputs(const std::vector<at::Tensor>& gathered,
                                         size_t chunk) const;
  // As the batch's report_split asked for; after Forward().
  std::vector<TrainingChunk> Report() const;

 private:
  using Tensors = std::vector<at::Tensor>;

  // A stage's chunks. Each rank writes what is its own.
  struct StageRun {
    std::vector<int64_t> split;
    std::vector<Tensors> outputs;                         // by chunk, detached
    std::vector<Tensors> input_gradients;                 // by chunk
    std::vector<Tensors> held;                            // by chunk: gradients of the parameters
    std::vector<std::vector<std::string>> input_shapes;   // reported
    std::vector<std::vector<std::string>> output_shapes;  // reported
    std::unique_ptr<BatchNormExchange> exchange;
  };

  // For a loss module that draws random numbers: of a part that begins with row `start`.
  uint64_t LossSeed(int64_t start) const;
  // The replica of `stage` that is `rank`'s and has a chunk.
  std::optional<size_t> Active(size_t stage, size_t rank) const;
  int64_t StartOf(size_t stage, size_t chunk) const;
  Tensors Inputs(size_t stage, size_t chunk, bool keep_graph) const;
  // The model's error on a chunk as one of the inputs: they fit the configuration, so what the
  // model says of them is the client's to know.
  absl::Status NameInputs(const absl::Status& status, size_t stage, size_t chunk) const;
  absl::Status ForwardChunk(WorkerGroup& worker_group, size_t rank, size_t stage, size_t chunk,
                            bool keep_graph, PhaseTimes* times);
  // True if the loss of these rows is the first of several that make up the batch's.
  bool IsFirstPart(int64_t start, int64_t rows) const { return start == 0 && rows < batch_.rows; }
  absl::Status CentralLoss(const std::vector<double>& whole, bool with_gradient);
  absl::Status ChunkLoss(size_t chunk, const std::vector<double>& whole, bool with_gradient);
  absl::StatusOr<std::vector<double>> SharesOf(int64_t start, int64_t rows,
                                               const std::vector<double>& whole) const;
  absl::Status BackwardChunk(WorkerGroup& worker_group, size_t rank, size_t stage, size_t chunk,
                             bool first, bool hold);
  Tensors OutputGradients(size_t stage, size_t chunk) const;
  absl::StatusOr<Tensors> GatherSome(const std::vector<bool>& wanted) const;

  const TrainedModel model_;
  const Batch& batch_;
  const int64_t start_;
  const int64_t rows_;
  const size_t groups_;
  std::vector<StageRun> stages_;
  std::vector<OverlappedReduce*> reduces_;
  std::vector<double> losses_;  // one, or one a chunk
  // Of the outputs, gathered (central loss, client) ...
  Tensors gathered_gradients_;
  // ... or by chunk.
  std::vector<Tensors> chunk_gradients_;
};

}  // namespace braid
