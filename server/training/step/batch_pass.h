// One batch, or one micro-batch, on its way through the model and back:
//
//   split → forward on all replicas, stage by stage → gather → loss → scatter the gradient →
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
#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/devices/worker_group.h"
#include "server/parallel/mode.h"
#include "server/parallel/overlapped_reduce.h"
#include "server/parallel/sync_batch_norm.h"
#include "server/training/loss/objective.h"
#include "server/training/step/rank_context.h"
#include "server/training/step/rank_map.h"
#include "server/training/step/stage.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer_spec.h"

namespace braid {

// The parts of a trainer that all of its passes use. They outlive the passes.
struct TrainedModel {
  const TrainerSpec* spec = nullptr;
  const Objective* objective = nullptr;
  const RankMap* ranks = nullptr;
  std::vector<Stage*> stages;
};

// The batch of an operation.
struct Batch {
  std::vector<HostTensor> inputs;
  std::vector<HostTensor> targets;  // from Objective::PickTargets(); empty: no loss,
                                    // unless no loss needs targets
  int64_t rows = 0;
  Mode mode = Mode::kTrain;
  uint64_t seed = 0;  // of the random numbers that the model draws
  double gradient_scale = 1;
  bool report_split = false;
};

// Owned by a TrainStep or, with a kept graph, by DataParallel. Each rank writes its own chunks
// only.
class BatchPass {
 public:
  // Rows [start, start + rows) of `batch`, which outlives the pass. `first_group`: index of
  // RankGroups()[0] among the groups of the worker group.
  BatchPass(const TrainedModel& model, const Batch& batch, int64_t start, int64_t rows,
            size_t first_group);

  // Returns, for each stage, the ranks that have a chunk.
  std::vector<RankGroup> RankGroups() const;

  // Begins to copy the rank's chunk of the inputs to its device.
  absl::Status Split(const RankContext& context);
  // Runs the stages one after the other. Ends with a barrier. Call Loss() or a barrier before the
  // batch's next micro-batch.
  absl::Status Forward(const RankContext& context, bool keep_graph);
  // Gathers the outputs that the losses take, for a central loss.
  absl::Status Gather(const RankContext& context);
  // Computes the loss of these rows, weighted by their share of `whole`, the denominators of the
  // losses over the whole batch; empty: these rows are the whole batch. loss() has its value after
  // the next DeviceScalars::Read(). Ends with a barrier.
  absl::Status Loss(const RankContext& context, const std::vector<double>& whole,
                    bool with_gradient);
  // Sets the gradients of the gathered outputs, scaled, in place of a loss. By the trainer's
  // thread.
  void SetOutputGradients(std::vector<at::Tensor> gradients);
  // Takes the rank's chunk of the gradient of the outputs.
  absl::Status ScatterGradient(const RankContext& context);
  // Sums the replicas' gradients during Backward(), by stage; nullptr: not that stage's. `reduces`
  // outlive the pass.
  void OverlapReduce(std::vector<OverlappedReduce*> reduces) { reduces_ = std::move(reduces); }
  // Adds the gradients to the flat gradients, or, with `hold`, holds them until Release(). `first`:
  // overwrites the flat gradients instead of adding.
  absl::Status Backward(const RankContext& context, bool first, bool hold);
  // Waits for the sums on the rank's device, including sums that others began after it had failed.
  absl::Status WaitForReduces(size_t rank);
  // Adds the held gradients to the flat gradients.
  void Release(size_t rank);
  // Returns the held gradients of a first batch by chunk and parameter: dense, contiguous;
  // undefined for a parameter without a gradient.
  const std::vector<std::vector<at::Tensor>>& held(size_t stage) const {
    return stages_[stage].held;
  }
  // Returns the held gradients of the rank's chunks.
  std::vector<at::Tensor> HeldBy(size_t rank) const;

  // Gathers all outputs on the output device. By the output rank, after Forward().
  absl::StatusOr<std::vector<at::Tensor>> GatherOutputs() const;

  double loss() const;
  // Returns the gathered shape of output `output`, after Forward(): a 0-dim output has one element
  // per chunk.
  std::vector<int64_t> gathered_shape(size_t output) const;
  size_t outputs() const { return stages_.back().outputs.front().size(); }
  int64_t rows() const { return rows_; }
  size_t chunks(size_t stage) const { return stages_[stage].split.size(); }
  // Returns the rows of each chunk of the last stage.
  const std::vector<int64_t>& split() const { return stages_.back().split; }
  // Returns the part of the gathered outputs that chunk `chunk` computed; a 0-dim output is 0-dim.
  std::vector<at::Tensor> ChunkOfOutputs(const std::vector<at::Tensor>& gathered,
                                         size_t chunk) const;
  // Returns the chunks and, if the batch asks for them, their shapes. After Forward().
  std::vector<TrainingChunk> Report() const;

 private:
  using Tensors = std::vector<at::Tensor>;

  // The chunks of one stage.
  struct StageRun {
    std::vector<int64_t> split;
    std::vector<Tensors> inputs;                          // by chunk, from Split() to Forward()
    std::vector<Tensors> outputs;                         // by chunk, detached
    std::vector<Tensors> output_gradients;                // by chunk, until Backward()
    std::vector<Tensors> input_gradients;                 // by chunk
    std::vector<Tensors> held;                            // by chunk: gradients of the parameters
    std::vector<std::vector<std::string>> input_shapes;   // reported
    std::vector<std::vector<std::string>> output_shapes;  // reported
    std::unique_ptr<BatchNormExchange> exchange;
  };

  // Returns the seed for a loss module that draws random numbers for rows from `start`.
  uint64_t LossSeed(int64_t start) const;
  // Returns the replica of `stage` on `rank` if it has a chunk.
  std::optional<size_t> Active(size_t stage, size_t rank) const;
  int64_t StartOf(size_t stage, size_t chunk) const;
  Tensors BatchInputs(size_t chunk, Staging& staging) const;
  Tensors StageInputs(size_t stage, size_t chunk, bool keep_graph) const;
  // Returns an error that the model raised on a chunk as INVALID_ARGUMENT for `inputs`: the inputs
  // fit the configuration, so the model's message is for the client.
  absl::Status NameInputs(const absl::Status& status, size_t stage, size_t chunk) const;
  absl::Status ForwardChunk(const RankContext& context, size_t stage, size_t chunk,
                            bool keep_graph);
  // Checks that what stage `stage` passes on to the next one is batched.
  absl::Status CheckPassedOn(size_t stage, size_t chunk) const;
  // Returns whether these rows are the first of several parts of the batch.
  bool IsFirstPart(int64_t start, int64_t rows) const { return start == 0 && rows < batch_.rows; }
  absl::Status CentralLoss(const RankContext& context, const std::vector<double>& whole,
                           bool with_gradient);
  absl::Status ChunkLoss(const RankContext& context, size_t chunk, const std::vector<double>& whole,
                         bool with_gradient);
  // Adds the value of the loss to losses_[index] once the device has computed it.
  void RecordLoss(const RankContext& context, const ObjectiveValue& value, size_t index);
  absl::StatusOr<std::vector<double>> SharesOf(int64_t start, int64_t rows,
                                               const std::vector<double>& whole) const;
  absl::Status BackwardChunk(const RankContext& context, size_t stage, size_t chunk, bool first,
                             bool hold);
  Tensors ModelOutputGradients(size_t chunk) const;
  Tensors StageOutputGradients(size_t stage, size_t chunk) const;
  absl::StatusOr<Tensors> GatherSome(const std::vector<bool>& wanted) const;

  const TrainedModel model_;
  const Batch& batch_;
  const int64_t start_;
  const int64_t rows_;
  const size_t first_group_;
  std::vector<StageRun> stages_;
  std::vector<OverlappedReduce*> reduces_;
  std::vector<double> losses_;  // one, or one per chunk
  Tensors gathered_;            // outputs for a central loss, from Gather() to Loss()
  // Gradients of the outputs: gathered (central loss, client) ...
  Tensors gathered_gradients_;
  // ... or by chunk.
  std::vector<Tensors> chunk_gradients_;
};

}  // namespace braid
