#include "server/training/step/batch_pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/random_seed.h"
#include "server/base/status.h"
#include "server/devices/autocast.h"
#include "server/devices/random.h"
#include "server/devices/run_on.h"
#include "server/kernels/onednn_product.h"
#include "server/parallel/chunks.h"
#include "server/parallel/host_copy.h"
#include "server/training/step/autocast_type.h"

namespace braid {
namespace {

// Part of batch norm's error for one row, in PyTorch, TorchScript and pairs.
constexpr char kOneValue[] = "more than 1 value per channel when training";

// SumGradients() reads the gradients' memory.
void MakeDense(std::vector<at::Tensor>* gradients) {
  for (at::Tensor& gradient : *gradients) {
    if (gradient.defined()) {
      gradient = gradient.is_sparse() ? gradient.to_dense() : Materialize(gradient).contiguous();
    }
  }
}

std::vector<std::string> Shapes(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> shapes;
  for (const at::Tensor& tensor : tensors) {
    shapes.push_back(ShapeString(tensor.sizes().vec()));
  }
  return shapes;
}

}  // namespace

BatchPass::BatchPass(const TrainedModel& model, const Batch& batch, int64_t start, int64_t rows,
                     size_t first_group)
    : model_(model), batch_(batch), start_(start), rows_(rows), first_group_(first_group) {
  for (const Stage* stage : model_.stages) {
    StageRun& run = stages_.emplace_back();
    run.split = ChunkSizes(rows, static_cast<int64_t>(stage->size()));
    const size_t chunks = run.split.size();
    run.inputs.resize(chunks);
    run.outputs.resize(chunks);
    run.output_gradients.resize(chunks);
    run.input_gradients.resize(chunks);
    run.held.resize(chunks);
    run.input_shapes.resize(chunks);
    run.output_shapes.resize(chunks);
    run.exchange = std::make_unique<BatchNormExchange>(chunks);
  }
  const bool by_chunk =
      model_.spec->loss_mode == LossMode::kPerReplica || model_.spec->loss_mode == LossMode::kModel;
  reduces_.resize(stages_.size());
  losses_.resize(by_chunk ? stages_.back().split.size() : 1);
  chunk_gradients_.resize(stages_.back().split.size());
}

std::vector<RankGroup> BatchPass::RankGroups() const {
  std::vector<RankGroup> groups;
  for (size_t s = 0; s < stages_.size(); ++s) {
    const std::vector<size_t>& ranks = model_.ranks->rank[s];
    groups.emplace_back(ranks.begin(),
                        ranks.begin() + static_cast<std::ptrdiff_t>(stages_[s].split.size()));
  }
  return groups;
}

std::optional<size_t> BatchPass::Active(size_t stage, size_t rank) const {
  const std::optional<size_t> replica = model_.ranks->replica[stage][rank];
  return replica && *replica < stages_[stage].split.size() ? replica : std::nullopt;
}

int64_t BatchPass::StartOf(size_t stage, size_t chunk) const {
  const std::vector<int64_t>& split = stages_[stage].split;
  return std::accumulate(split.begin(), split.begin() + static_cast<std::ptrdiff_t>(chunk),
                         int64_t{0});
}

BatchPass::Tensors BatchPass::BatchInputs(size_t chunk, Staging& staging) const {
  const int64_t start = start_ + StartOf(0, chunk);
  Tensors inputs;
  for (const HostTensor& input : batch_.inputs) {
    const at::Tensor rows = ViewRows(input, start, stages_[0].split[chunk]);
    // Chunks must not share memory, because a model may modify its inputs in place.
    inputs.push_back(input.broadcast && !staging.needed() ? rows.clone() : staging.Upload(rows));
  }
  return inputs;
}

absl::Status BatchPass::Split(const RankContext& context) {
  if (const std::optional<size_t> chunk = Active(0, context.rank())) {
    context.Measure(Phase::kCopyIn,
                    [&] { stages_[0].inputs[*chunk] = BatchInputs(*chunk, context.staging()); });
  }
  return absl::OkStatus();
}

BatchPass::Tensors BatchPass::StageInputs(size_t stage, size_t chunk, bool keep_graph) const {
  // Only a stage before this one with trained parameters needs the gradients of the inputs.
  const auto end = model_.stages.begin() + static_cast<std::ptrdiff_t>(stage);
  const bool wanted = keep_graph && std::any_of(model_.stages.begin(), end,
                                                [](const Stage* each) { return each->trains(); });
  const c10::Device device = model_.stages[stage]->worker(chunk).torch_device();
  const std::vector<Tensors>& before = stages_[stage - 1].outputs;
  Tensors inputs;
  for (size_t i = 0; i < before.front().size(); ++i) {
    Tensors chunks;
    for (const Tensors& outputs : before) {
      chunks.push_back(outputs[i]);
    }
    // Detached: the chunk itself may be passed on, and must not become a leaf of two graphs.
    at::Tensor input =
        ConcatenateRows(chunks, StartOf(stage, chunk), stages_[stage].split[chunk], device)
            .detach();
    inputs.push_back(input.requires_grad_(wanted && input.is_floating_point()));
  }
  return inputs;
}

absl::Status BatchPass::NameInputs(const absl::Status& status, size_t stage, size_t chunk) const {
  if (status.code() != absl::StatusCode::kInternal) {
    return status;
  }
  if (!absl::StrContains(status.message(), kOneValue)) {
    return InvalidField("inputs", absl::StrCat("the model raised an error: ", status.message()));
  }
  const std::vector<int64_t>& split = stages_[stage].split;
  const std::string place = split.size() == 1
                                ? ""
                                : absl::StrCat(", chunk ", chunk + 1, " of ", split.size(),
                                               " that ", rows_, " rows are split into");
  std::vector<std::string> ways = {rows_ < batch_.rows
                                       ? "raise micro_batch"
                                       : "leave out an epoch's last, smaller batch (drop_last)"};
  if (rows_ > 1 && !model_.spec->sync_batch_norm) {
    ways.emplace_back("set sync_batch_norm");
  }
  return InvalidField("inputs",
                      absl::StrCat("the model cannot train on the ", split[chunk], " row of ",
                                   model_.stages[stage]->worker(chunk).name(), place, ": ",
                                   status.message(), " (expected at least 2 rows in each ",
                                   "chunk: ", absl::StrJoin(ways, ", or "), ")"));
}

absl::Status BatchPass::CheckPassedOn(size_t stage, size_t chunk) const {
  const StageRun& run = stages_[stage];
  if (stage + 1 == stages_.size()) {
    return absl::OkStatus();
  }
  for (const at::Tensor& output : run.outputs[chunk]) {
    if (output.dim() == 0 || output.size(0) != run.split[chunk]) {
      return absl::FailedPreconditionError(
          absl::StrCat("stage '", model_.stages[stage]->path(), "' returned a tensor of shape ",
                       ShapeString(output.sizes().vec()), " for ", run.split[chunk],
                       " rows: what goes on to the next stage is batched along dim 0"));
    }
  }
  return absl::OkStatus();
}

absl::Status BatchPass::ForwardChunk(const RankContext& context, size_t stage, size_t chunk,
                                     bool keep_graph) {
  Stage& part = *model_.stages[stage];
  StageRun& run = stages_[stage];
  const bool training = batch_.mode == Mode::kTrain;
  const Tensors inputs =
      stage == 0
          ? std::exchange(run.inputs[chunk], {})
          : context.Measure(Phase::kCopyIn, [&] { return StageInputs(stage, chunk, keep_graph); });
  return context.Measure(Phase::kForward, [&]() -> absl::Status {
    if (chunk > 0 && start_ > 0 && training) {
      part.TakeMicroBatchBuffers(chunk);
    } else if (chunk > 0) {
      part.ResetBuffers(chunk);
    }
    Replica& replica = part.replica(chunk);
    const c10::Device device = part.worker(chunk).torch_device();
    std::optional<RandomSeedGuard> random;
    std::optional<SyncBatchNormGuard> batch_norm;
    if (training) {
      const auto first_row = static_cast<uint64_t>(start_ + StartOf(stage, chunk));
      random.emplace(device, MixSeed(MixSeed(batch_.seed, stage), first_row));
    }
    if (training && model_.spec->sync_batch_norm) {
      batch_norm.emplace(context.group(), first_group_ + stage, context.rank(), chunk,
                         *run.exchange);
    }
    const AutocastGuard autocast(device, AutocastType(model_.spec->precision));
    const OneDnnProductsGuard products;
    const absl::Status status = CatchTorch([&]() -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(run.outputs[chunk],
                             keep_graph ? replica.ForwardForTraining(inputs, batch_.mode)
                                        : replica.Forward(inputs, batch_.mode));
      return absl::OkStatus();
    });
    if (!status.ok()) {
      return NameInputs(status, stage, chunk);
    }
    if (batch_.report_split) {
      run.input_shapes[chunk] = Shapes(inputs);
      run.output_shapes[chunk] = Shapes(run.outputs[chunk]);
    }
    BRAID_RETURN_IF_ERROR(CheckPassedOn(stage, chunk));
    part.worker(chunk).CountChunk(DeviceWork::kTraining, run.split[chunk]);
    return absl::OkStatus();
  });
}

absl::Status BatchPass::Forward(const RankContext& context, bool keep_graph) {
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (const std::optional<size_t> chunk = Active(s, context.rank())) {
      BRAID_RETURN_IF_ERROR(ForwardChunk(context, s, *chunk, keep_graph));
    }
    BRAID_RETURN_IF_ERROR(context.Barrier());
  }
  const bool goes_on = batch_.mode == Mode::kTrain && start_ + rows_ < batch_.rows;
  for (size_t s = 0; goes_on && s < stages_.size(); ++s) {
    if (model_.ranks->replica[s][context.rank()] == size_t{0}) {
      model_.stages[s]->SaveMicroBatchBuffers();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchPass::Tensors> BatchPass::GatherSome(const std::vector<bool>& wanted) const {
  const StageRun& last = stages_.back();
  Tensors gathered(wanted.size());
  for (size_t o = 0; o < wanted.size(); ++o) {
    if (!wanted[o]) {
      continue;
    }
    std::vector<Tensors> chunks;
    for (const Tensors& outputs : last.outputs) {
      chunks.push_back({outputs[o]});
    }
    BRAID_ASSIGN_OR_RETURN(Tensors one,
                           braid::Gather(chunks, last.split, model_.ranks->output_device));
    gathered[o] = std::move(one.front());
  }
  return gathered;
}

absl::StatusOr<BatchPass::Tensors> BatchPass::GatherOutputs() const {
  return GatherSome(std::vector<bool>(outputs(), true));
}

BatchPass::Tensors BatchPass::ChunkOfOutputs(const Tensors& gathered, size_t chunk) const {
  const StageRun& last = stages_.back();
  Tensors outputs(gathered.size());
  for (size_t o = 0; o < gathered.size(); ++o) {
    outputs[o] = ChunkOf(gathered[o], last.outputs[chunk][o].dim() == 0, last.split, chunk);
  }
  return outputs;
}

uint64_t BatchPass::LossSeed(int64_t start) const {
  // After the seed of the last stage.
  return MixSeed(MixSeed(batch_.seed, stages_.size()), static_cast<uint64_t>(start));
}

absl::StatusOr<std::vector<double>> BatchPass::SharesOf(int64_t start, int64_t rows,
                                                        const std::vector<double>& whole) const {
  if (whole.empty()) {
    return std::vector<double>(model_.objective->losses().size(), 1);
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<double> part,
                         model_.objective->Denominators(batch_.targets, start, rows));
  return model_.objective->Shares(part, whole);
}

absl::Status BatchPass::Gather(const RankContext& context) {
  if (model_.spec->loss_mode != LossMode::kCentral || context.rank() != model_.ranks->output_rank) {
    return absl::OkStatus();
  }
  return context.Measure(Phase::kLoss, [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(gathered_, GatherSome(model_.objective->takes_output()));
    return absl::OkStatus();
  });
}

void BatchPass::RecordLoss(const RankContext& context, const ObjectiveValue& value, size_t index) {
  losses_[index] = 0;
  for (const LossTerm& term : value.terms) {
    context.scalars().Add(term.value, [this, index, factor = term.factor](double number) {
      losses_[index] += factor * number;
    });
  }
}

absl::Status BatchPass::CentralLoss(const RankContext& context, const std::vector<double>& whole,
                                    bool with_gradient) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<double> shares, SharesOf(start_, rows_, whole));
  if (IsFirstPart(start_, rows_)) {
    BRAID_RETURN_IF_ERROR(model_.objective->CheckAddsUp(gathered_, batch_.targets, with_gradient));
  }
  std::optional<RandomSeedGuard> random;
  if (model_.objective->has_module()) {
    random.emplace(model_.ranks->output_device, LossSeed(start_));
  }
  BRAID_ASSIGN_OR_RETURN(
      ObjectiveValue value,
      model_.objective->Compute(std::exchange(gathered_, {}), batch_.targets, start_, rows_, shares,
                                {with_gradient, batch_.gradient_scale}, &context.staging()));
  RecordLoss(context, value, 0);
  gathered_gradients_ = std::move(value.output_gradients);
  return absl::OkStatus();
}

absl::Status BatchPass::ChunkLoss(const RankContext& context, size_t chunk,
                                  const std::vector<double>& whole, bool with_gradient) {
  const StageRun& last = stages_.back();
  const int64_t start = start_ + StartOf(stages_.size() - 1, chunk);
  const int64_t rows = last.split[chunk];
  BRAID_ASSIGN_OR_RETURN(std::vector<double> shares, SharesOf(start, rows, whole));
  if (model_.spec->unweighted_mean) {
    // The mean of the chunks of this micro-batch, which is weighted by its rows.
    const double micro_batch = static_cast<double>(rows_) / static_cast<double>(batch_.rows);
    shares.assign(shares.size(), micro_batch / static_cast<double>(last.split.size()));
  }
  if (IsFirstPart(start, rows)) {
    BRAID_RETURN_IF_ERROR(
        model_.objective->CheckAddsUp(last.outputs[chunk], batch_.targets, with_gradient));
  }
  std::optional<RandomSeedGuard> random;
  if (model_.objective->has_module()) {
    random.emplace(model_.stages.back()->worker(chunk).torch_device(), LossSeed(start));
  }
  BRAID_ASSIGN_OR_RETURN(
      ObjectiveValue value,
      model_.objective->Compute(last.outputs[chunk], batch_.targets, start, rows, shares,
                                {with_gradient, batch_.gradient_scale}, &context.staging()));
  RecordLoss(context, value, chunk);
  chunk_gradients_[chunk] = std::move(value.output_gradients);
  return absl::OkStatus();
}

absl::Status BatchPass::Loss(const RankContext& context, const std::vector<double>& whole,
                             bool with_gradient) {
  const bool central = model_.spec->loss_mode == LossMode::kCentral;
  const std::optional<size_t> chunk = Active(stages_.size() - 1, context.rank());
  if (central ? context.rank() == model_.ranks->output_rank : chunk.has_value()) {
    BRAID_RETURN_IF_ERROR(context.Measure(Phase::kLoss, [&] {
      return central ? CentralLoss(context, whole, with_gradient)
                     : ChunkLoss(context, *chunk, whole, with_gradient);
    }));
  }
  return context.Barrier();
}

double BatchPass::loss() const { return std::accumulate(losses_.begin(), losses_.end(), 0.0); }

void BatchPass::SetOutputGradients(std::vector<at::Tensor> gradients) {
  gathered_gradients_ = std::move(gradients);
}

BatchPass::Tensors BatchPass::ModelOutputGradients(size_t chunk) const {
  const StageRun& run = stages_.back();
  if (!gathered_gradients_.empty()) {
    const c10::Device device = model_.stages.back()->worker(chunk).torch_device();
    Tensors gradients(run.outputs[chunk].size());
    for (size_t o = 0; o < gathered_gradients_.size(); ++o) {
      if (gathered_gradients_[o].defined()) {
        const at::Tensor& output = run.outputs[chunk][o];
        gradients[o] = ChunkOf(gathered_gradients_[o], output.dim() == 0, run.split, chunk)
                           .to(device, output.scalar_type());
      }
    }
    return gradients;
  }
  Tensors gradients = chunk_gradients_[chunk];
  for (size_t o = 0; model_.spec->sync_batch_norm && o < gradients.size(); ++o) {
    // The other chunks are normalized by this chunk's rows too, even where no loss counts them.
    if (!gradients[o].defined() && model_.objective->takes_output()[o]) {
      gradients[o] = at::zeros_like(run.outputs[chunk][o]);
    }
  }
  return gradients;
}

BatchPass::Tensors BatchPass::StageOutputGradients(size_t stage, size_t chunk) const {
  const StageRun& run = stages_[stage];
  const c10::Device device = model_.stages[stage]->worker(chunk).torch_device();
  Tensors gradients(run.outputs[chunk].size());
  const std::vector<Tensors>& after = stages_[stage + 1].input_gradients;
  for (size_t o = 0; o < gradients.size(); ++o) {
    Tensors chunks;
    bool any = false;
    for (size_t c = 0; c < after.size(); ++c) {
      any = any || after[c][o].defined();
      chunks.push_back(after[c][o]);
    }
    if (!any) {
      continue;
    }
    for (size_t c = 0; c < chunks.size(); ++c) {
      if (!chunks[c].defined()) {
        std::vector<int64_t> shape = run.outputs[chunk][o].sizes().vec();
        shape[0] = stages_[stage + 1].split[c];
        chunks[c] = at::zeros(shape, run.outputs[chunk][o].options());
      }
    }
    gradients[o] = ConcatenateRows(chunks, StartOf(stage, chunk), run.split[chunk], device);
  }
  return gradients;
}

absl::Status BatchPass::ScatterGradient(const RankContext& context) {
  const size_t last = stages_.size() - 1;
  if (const std::optional<size_t> chunk = Active(last, context.rank())) {
    context.Measure(Phase::kBackward,
                    [&] { stages_[last].output_gradients[*chunk] = ModelOutputGradients(*chunk); });
  }
  return absl::OkStatus();
}

absl::Status BatchPass::BackwardChunk(const RankContext& context, size_t stage, size_t chunk,
                                      bool first, bool hold) {
  Stage& part = *model_.stages[stage];
  StageRun& run = stages_[stage];
  if (stage + 1 < stages_.size()) {
    run.output_gradients[chunk] = StageOutputGradients(stage, chunk);
  }
  std::optional<SyncBatchNormGuard> batch_norm;
  if (model_.spec->sync_batch_norm) {
    batch_norm.emplace(context.group(), first_group_ + stage, context.rank(), chunk, *run.exchange);
  }
  OverlappedReduce* const reduce = reduces_[stage];
  const OneDnnProductsGuard products;
  Replica::OnGradient on_gradient;
  if (reduce != nullptr) {
    reduce->Begin(chunk);
    on_gradient = [reduce, chunk](size_t p, const at::Tensor& gradient) {
      reduce->Add(chunk, p, gradient);
    };
  }
  BRAID_ASSIGN_OR_RETURN(
      Gradients gradients,
      part.replica(chunk).Backward(std::exchange(run.output_gradients[chunk], {}), on_gradient));
  run.input_gradients[chunk] = std::move(gradients.inputs);
  if (reduce != nullptr) {
    return reduce->End(chunk);
  }
  if (hold) {
    run.held[chunk] = std::move(gradients.parameters);
    if (first) {
      MakeDense(&run.held[chunk]);
      part.flat(chunk).MarkReached(run.held[chunk]);
    }
  } else {
    part.flat(chunk).Accumulate(gradients.parameters, first);
  }
  return absl::OkStatus();
}

absl::Status BatchPass::WaitForReduces(size_t rank) {
  for (size_t s = 0; s < stages_.size(); ++s) {
    const std::optional<size_t> replica = model_.ranks->replica[s][rank];
    if (replica && reduces_[s] != nullptr) {
      BRAID_RETURN_IF_ERROR(reduces_[s]->Wait(*replica));
    }
  }
  return absl::OkStatus();
}

absl::Status BatchPass::Backward(const RankContext& context, bool first, bool hold) {
  const size_t rank = context.rank();
  for (size_t s = stages_.size(); s-- > 0;) {
    Stage& stage = *model_.stages[s];
    if (const std::optional<size_t> chunk = Active(s, rank)) {
      BRAID_RETURN_IF_ERROR(context.Measure(
          Phase::kBackward, [&] { return BackwardChunk(context, s, *chunk, first, hold); }));
    } else if (const std::optional<size_t> idle = model_.ranks->replica[s][rank];
               idle && first && !hold) {
      // Its flat gradients are from an earlier step and must not be summed.
      if (reduces_[s] != nullptr) {
        reduces_[s]->Begin(*idle);
        BRAID_RETURN_IF_ERROR(reduces_[s]->End(*idle));
      } else {
        stage.flat(*idle).Accumulate(std::vector<at::Tensor>(stage.flat(*idle).slots().size()),
                                     /*first=*/true);
      }
    }
    if (s > 0) {
      BRAID_RETURN_IF_ERROR(context.Barrier());
    }
  }
  if (std::all_of(reduces_.begin(), reduces_.end(), [](auto* reduce) { return !reduce; })) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(context.Barrier());
  return context.Measure(Phase::kReduce, [&] { return WaitForReduces(rank); });
}

void BatchPass::Release(size_t rank) {
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (const std::optional<size_t> chunk = Active(s, rank)) {
      model_.stages[s]->flat(*chunk).Accumulate(std::exchange(stages_[s].held[*chunk], {}),
                                                /*first=*/false);
    }
  }
}

BatchPass::Tensors BatchPass::HeldBy(size_t rank) const {
  Tensors held;
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (const std::optional<size_t> chunk = Active(s, rank)) {
      for (const at::Tensor& gradient : stages_[s].held[*chunk]) {
        if (gradient.defined()) {
          held.push_back(gradient);
        }
      }
    }
  }
  return held;
}

std::vector<int64_t> BatchPass::gathered_shape(size_t output) const {
  const StageRun& last = stages_.back();
  std::vector<int64_t> shape = last.outputs.front()[output].sizes().vec();
  if (shape.empty()) {
    return {static_cast<int64_t>(last.split.size())};
  }
  shape[0] = rows_;
  return shape;
}

std::vector<TrainingChunk> BatchPass::Report() const {
  std::vector<TrainingChunk> chunks;
  for (size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = *model_.stages[s];
    for (size_t c = 0; c < stages_[s].split.size(); ++c) {
      chunks.push_back({stage.worker(c).name(), stages_[s].split[c], stage.path(),
                        stages_[s].input_shapes[c], stages_[s].output_shapes[c]});
    }
  }
  return chunks;
}

}  // namespace braid
