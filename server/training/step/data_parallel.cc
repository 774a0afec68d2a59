#include "server/training/step/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/ops/cat.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/devices/run_on.h"
#include "server/models/batch_layout.h"
#include "server/parallel/finite.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

// Batch shapes that a trainer remembers.
constexpr size_t kMaxShapes = 1024;

constexpr Phase kReported[] = {Phase::kCopyIn, Phase::kForward, Phase::kLoss,      Phase::kBackward,
                               Phase::kReduce, Phase::kUpdate,  Phase::kBroadcast, Phase::kCopyOut};

std::vector<PhaseTime> ReportPhases(const PhaseTimes& times) {
  std::vector<PhaseTime> phases;
  for (const Phase phase : kReported) {
    phases.push_back({std::string(PhaseName(phase)), times.longest(phase)});
  }
  return phases;
}

std::vector<std::vector<int64_t>> ShapesOf(const Batch& batch) {
  std::vector<std::vector<int64_t>> shapes;
  for (const std::vector<HostTensor>* tensors : {&batch.inputs, &batch.targets}) {
    for (const HostTensor& tensor : *tensors) {
      shapes.push_back(tensor.shape);
    }
  }
  return shapes;
}

// Copies the tensors out of the request's memory, because a kept graph outlives the request.
void Own(std::vector<HostTensor>* tensors) {
  for (HostTensor& tensor : *tensors) {
    auto bytes = std::make_shared<std::string>(static_cast<const char*>(tensor.data), tensor.bytes);
    tensor.data = bytes->data();
    tensor.owner = std::move(bytes);
  }
}

}  // namespace

absl::StatusOr<ParameterGroups> DataParallel::GroupsOf(const ModelConfig& config,
                                                       const TrainerSpec& spec,
                                                       const Placement& placement) {
  if (!config.batched()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", config.name,
                     "' is not batched (max_batch_size: 0): its batches cannot "
                     "be split over replicas; if dim 0 is the batch, set "
                     "parameters[\"row_independence\"] to \"dependent\" in config.pbtxt"));
  }
  for (const TensorSpec& input : config.inputs) {
    if (input.scalar && !input.default_value) {
      return absl::FailedPreconditionError(
          absl::StrCat("model '", config.name, "': argument '", input.name,
                       "' is a number without a default (training needs a default)"));
    }
  }
  std::vector<std::string> names;
  for (const PlacedStage& placed : placement.stages) {
    for (const Parameter& parameter : placed.replicas.replica(0).parameters()) {
      names.push_back(placed.path.empty() ? parameter.name
                                          : absl::StrCat(placed.path, ".", parameter.name));
    }
  }
  if (names.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", config.name, "' has no parameter that requires a gradient"));
  }
  return ParameterGroups::Create(spec.groups, names);
}

absl::StatusOr<std::unique_ptr<DataParallel>> DataParallel::Create(
    const ModelConfig& config, TrainerSpec spec, std::shared_ptr<const Objective> objective,
    Placement placement) {
  BRAID_ASSIGN_OR_RETURN(ParameterGroups groups, GroupsOf(config, spec, placement));
  std::unique_ptr<DataParallel> trained(
      new DataParallel(config, std::move(spec), std::move(objective), placement));
  trained->groups_ = std::move(groups);
  BRAID_RETURN_IF_ERROR(trained->Init(std::move(placement)));
  return trained;
}

DataParallel::DataParallel(const ModelConfig& config, TrainerSpec spec,
                           std::shared_ptr<const Objective> objective, const Placement& placement)
    : config_(config),
      spec_(std::move(spec)),
      objective_(std::move(objective)),
      ranks_(placement),
      overlap_reduction_(placement.overlap_reduction),
      scaler_(spec_.grad_scaler),
      sync_(spec_.sync, /*measure=*/false) {}

DataParallel::~DataParallel() { DropKept(); }

absl::Status DataParallel::Init(Placement placement) {
  const auto any = [&placement](Link link) {
    return std::any_of(placement.stages.begin(), placement.stages.end(),
                       [link](const PlacedStage& placed) { return LinkOf(placed) == link; });
  };
  const bool nccl = any(Link::kNccl);
  // Replicas that update their own parameters cannot share them.
  const bool share_parameters = !nccl && !any(Link::kCopies) && spec_.sync != SyncMode::kAllReduce;
  size_t first = 0;
  for (PlacedStage& placed : placement.stages) {
    const size_t count = placed.replicas.replica(0).parameters().size();
    BRAID_ASSIGN_OR_RETURN(
        std::unique_ptr<Stage> stage,
        Stage::Create(std::move(placed), groups_->Range(first, count), share_parameters));
    stages_.push_back(std::move(stage));
    first += count;
  }
  sync_ = SyncChoice(share_parameters ? SyncMode::kReduceBroadcast : spec_.sync,
                     /*measure=*/!nccl);
  holding_.assign(stages_.size(), 0);
  for (size_t s = 0; s < stages_.size(); ++s) {
    BRAID_RETURN_IF_ERROR(CheckAdditive(s));
    stages_[s]->MakeOptimizer(spec_.optimizer);
  }
  peaks_.assign(ranks_.workers.size(), 0);
  CountBytes();
  return absl::OkStatus();
}

absl::Status DataParallel::CheckAdditive(size_t s) const {
  const Stage& stage = *stages_[s];
  if (stage.size() == 1 && spec_.micro_batch == 0) {
    return absl::OkStatus();
  }
  std::optional<std::string> parameter;
  BRAID_RETURN_IF_ERROR(RunOnEach({&stage.worker(0)}, Phase::kLoad, [&](size_t) {
    parameter = stage.replica(0).DescribeNonAdditiveParameter();
    return absl::OkStatus();
  }));
  if (!parameter) {
    return absl::OkStatus();
  }
  const std::string field =
      stage.size() > 1 ? absl::StrCat("stages[", s, "].devices: ", stage.size(), " devices")
                       : absl::StrCat("micro_batch: ", spec_.micro_batch, " rows");
  return absl::FailedPreconditionError(absl::StrCat(
      field, " divide a batch, but the gradient of ", *parameter,
      " depends on how often each index occurs in the whole batch (use one device and no "
      "micro_batch, or a model with scale_grad_by_freq=False)"));
}

TrainedModel DataParallel::model() const {
  TrainedModel model{&spec_, objective_.get(), &ranks_, {}};
  for (const std::unique_ptr<Stage>& stage : stages_) {
    model.stages.push_back(stage.get());
  }
  return model;
}

std::vector<int64_t> DataParallel::MicroBatches(int64_t rows) const {
  if (spec_.micro_batch == 0) {
    return {rows};
  }
  // The most rows of which each replica of every stage gets at most micro_batch rows.
  size_t fewest = stages_.front()->size();
  for (const std::unique_ptr<Stage>& stage : stages_) {
    fewest = std::min(fewest, stage->size());
  }
  // The product with micro_batch may overflow.
  const auto replicas = static_cast<int64_t>(fewest);
  const int64_t most = spec_.micro_batch >= rows ? rows : spec_.micro_batch * replicas;
  // Even sizes: layers that look at all rows, such as batch norm, must not get a single row.
  const int64_t count = (rows + most - 1) / most;
  std::vector<int64_t> sizes(static_cast<size_t>(count), rows / count);
  std::fill_n(sizes.begin(), rows % count, rows / count + 1);
  return sizes;
}

std::unique_ptr<TrainStep> DataParallel::NewStep(const Batch& batch, bool with_loss) {
  TrainStep::Options options;
  options.holding = holding_;
  options.accumulating = accumulated_ > 0;
  options.overflowed = overflow_;
  options.gradient_scale = gradient_scale();
  options.with_loss = with_loss;
  options.peaks = &peaks_;
  return std::make_unique<TrainStep>(model(), batch, std::move(options));
}

absl::StatusOr<std::unique_ptr<TrainStep>> DataParallel::Split(
    const Batch& batch, const std::vector<GroupValues>* update) {
  DropKept();
  std::unique_ptr<TrainStep> step = NewStep(batch, /*with_loss=*/true);
  for (const int64_t rows : MicroBatches(batch.rows)) {
    step->AddMicroBatch(rows);
  }
  if (update != nullptr) {
    BRAID_RETURN_IF_ERROR(AddUpdate(*step, *update));
  }
  BRAID_RETURN_IF_ERROR(step->SaveGradients());
  return step;
}

absl::Status DataParallel::AddUpdate(TrainStep& step, const std::vector<GroupValues>& values) {
  BRAID_RETURN_IF_ERROR(UnshareParameters());
  BRAID_RETURN_IF_ERROR(PrepareOptimizers(values));
  const bool all_reduce = ranks_.workers.size() > 1 && sync_.all_reduce();
  if (all_reduce) {
    BRAID_RETURN_IF_ERROR(EqualizeOptimizers());
  }
  optimizers_equal_ = all_reduce;
  step.SetUpdate({values, all_reduce});
  // A collective under way waits for all its GPUs. An allocation on one of them may wait for the
  // collective and delay its launch on another. Batches of shapes that have run before find their
  // memory in the allocator's caches and their kernels loaded.
  if (overlap_reduction_ && step.can_overlap_reduce() &&
      settled_.contains(ShapesOf(step.batch()))) {
    step.OverlapReduce();
  }
  return absl::OkStatus();
}

absl::Status DataParallel::PrepareOptimizers(const std::vector<GroupValues>& values) {
  for (size_t s = 0; !prepared_ && s < stages_.size(); ++s) {
    Stage& stage = *stages_[s];
    BRAID_RETURN_IF_ERROR(RunOnEach({&stage.worker(0)}, Phase::kUpdate, [&](size_t) {
      // Any parameter may get a gradient.
      const std::vector<bool> all(stage.flat(0).slots().size(), true);
      stage.optimizer(0).Prepare(stage.optimizer(0).Plan(all, values));
      return absl::OkStatus();
    }));
  }
  if (!prepared_) {
    CountBytes();
  }
  prepared_ = true;
  return absl::OkStatus();
}

absl::Status DataParallel::EqualizeOptimizers() {
  if (optimizers_equal_) {
    return absl::OkStatus();
  }
  for (const std::unique_ptr<Stage>& stage : stages_) {
    BRAID_RETURN_IF_ERROR(RunOnEach(stage->workers(), Phase::kUpdate, [&](size_t r) {
      return r > 0 ? stage->CopyOptimizer(r) : absl::OkStatus();
    }));
  }
  CountBytes();
  return absl::OkStatus();
}

absl::StatusOr<OperationResult> DataParallel::RunTrainStep(const Batch& batch,
                                                           const std::vector<GroupValues>* update) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<TrainStep> step, Split(batch, update));
  const absl::Status status = step->OnEachRank([&](const RankContext& context) -> absl::Status {
    BRAID_RETURN_IF_ERROR(step->ComputeDenominators(context));
    for (const std::unique_ptr<BatchPass>& pass : step->passes()) {
      BRAID_RETURN_IF_ERROR(pass->Split(context));
      BRAID_RETURN_IF_ERROR(pass->Forward(context, /*keep_graph=*/true));
      BRAID_RETURN_IF_ERROR(pass->Gather(context));
      BRAID_RETURN_IF_ERROR(pass->Loss(context, step->whole(), /*with_gradient=*/true));
      BRAID_RETURN_IF_ERROR(pass->ScatterGradient(context));
      BRAID_RETURN_IF_ERROR(step->Backward(context, *pass));
    }
    BRAID_RETURN_IF_ERROR(step->Reduce(context));
    BRAID_RETURN_IF_ERROR(step->CheckFinite(context));
    BRAID_RETURN_IF_ERROR(step->Apply(context));
    return step->Broadcast(context);
  });
  return Record(*step, status);
}

absl::StatusOr<OperationResult> DataParallel::Record(TrainStep& step, const absl::Status& status) {
  BRAID_RETURN_IF_ERROR(RollBackOnError(step, status));
  BRAID_ASSIGN_OR_RETURN(const BatchOutcome outcome, step.Outcome());
  OperationResult result;
  result.skipped = !outcome.counts;
  if (step.with_loss()) {
    result.loss = step.loss();
  }
  if (outcome.counts && !step.passes().empty()) {
    ++accumulated_;
    holding_ = step.HoldingAfter();
    overflow_ = overflow_ || outcome.overflow;
  }
  if (outcome.counts && step.updates()) {
    RecordUpdate(step, &result);
  } else if (!outcome.counts && !step.updates()) {
    ++skipped_batches_;
  }
  Report(step, &result);
  return result;
}

absl::Status DataParallel::RollBackOnError(TrainStep& step, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  if (step.changing()) {
    poisoned_ = true;
    return status;
  }
  step.WaitForReduces();
  RollBack();
  step.RestoreGradients();
  return status;
}

void DataParallel::RecordUpdate(TrainStep& step, OperationResult* result) {
  if (overflow_) {
    result->skipped = true;
  } else {
    step.CommitUpdate();
    result->updated = true;
    result->gradient_norm = step.gradient_norm();
    sync_.Record(step.times().longest(Phase::kReduce) + step.times().longest(Phase::kUpdate) +
                 step.times().longest(Phase::kBroadcast));
  }
  if (spec_.precision == Precision::kFloat16) {
    scaler_.Update(overflow_);
  }
  accumulated_ = 0;
  skipped_batches_ = 0;
  overflow_ = false;
  holding_.assign(stages_.size(), 0);
  if (overlap_reduction_ && !step.passes().empty() && settled_.size() < kMaxShapes) {
    settled_.insert(ShapesOf(step.batch()));
  }
}

void DataParallel::Report(const TrainStep& step, OperationResult* result) const {
  result->phases = ReportPhases(step.times());
  result->imbalance = step.times().imbalance(ranks_.computing);
  for (const std::unique_ptr<BatchPass>& pass : step.passes()) {
    for (TrainingChunk& chunk : pass->Report()) {
      result->chunks.push_back(std::move(chunk));
    }
  }
}

absl::StatusOr<OperationResult> DataParallel::Update(const std::vector<GroupValues>& values) {
  DropKept();
  if (accumulated_ == 0) {
    skipped_batches_ = 0;
    OperationResult result;
    result.skipped = true;
    return result;
  }
  const std::unique_ptr<TrainStep> step = NewStep(Batch(), /*with_loss=*/false);
  BRAID_RETURN_IF_ERROR(AddUpdate(*step, values));
  const absl::Status status = step->OnEachRank([&](const RankContext& context) -> absl::Status {
    BRAID_RETURN_IF_ERROR(step->Apply(context));
    return step->Broadcast(context);
  });
  return Record(*step, status);
}

absl::StatusOr<OperationResult> DataParallel::Forward(const Batch& batch, bool keep_graph) {
  DropKept();
  const bool with_loss = !batch.targets.empty() || !objective_->needs_targets();
  const std::unique_ptr<TrainStep> step = NewStep(batch, with_loss);
  std::unique_ptr<Batch> kept;
  if (keep_graph) {
    kept = std::make_unique<Batch>(batch);
    Own(&kept->inputs);
    step->AddPass(std::make_unique<BatchPass>(model(), *kept, 0, batch.rows, /*first_group=*/0));
  } else {
    for (const int64_t rows : MicroBatches(batch.rows)) {
      step->AddMicroBatch(rows);
    }
  }
  const bool training = batch.mode == Mode::kTrain;
  buffers_finite_.assign(ranks_.workers.size(), 1);
  OperationResult result;
  const absl::Status status = step->OnEachRank([&](const RankContext& context) -> absl::Status {
    BRAID_RETURN_IF_ERROR(ForwardRank(context, *step, keep_graph, &result));
    return training ? CommitBuffers(context, keep_graph) : absl::OkStatus();
  });
  const bool skipped = !BuffersFinite();
  if (!status.ok() || skipped || (!training && has_buffers())) {
    RollBack();  // an evaluation changes nothing, even if the model changes its buffers
  }
  BRAID_RETURN_IF_ERROR(status);
  if (with_loss) {
    result.loss = step->loss();
  }
  Report(*step, &result);
  if (keep_graph) {
    kept_batch_ = std::move(kept);
    kept_ = step->TakePass();
    kept_is_skipped_ = skipped;
    CountBytes();
  } else {
    result.skipped = skipped;
  }
  return result;
}

absl::Status DataParallel::ForwardRank(const RankContext& context, TrainStep& step, bool keep_graph,
                                       OperationResult* result) {
  if (step.with_loss()) {
    BRAID_RETURN_IF_ERROR(step.ComputeDenominators(context));
  }
  std::vector<std::vector<at::Tensor>> gathered;
  for (const std::unique_ptr<BatchPass>& pass : step.passes()) {
    BRAID_RETURN_IF_ERROR(pass->Split(context));
    BRAID_RETURN_IF_ERROR(pass->Forward(context, keep_graph));
    if (context.rank() == ranks_.output_rank) {
      BRAID_ASSIGN_OR_RETURN(gathered.emplace_back(), pass->GatherOutputs());
    }
    if (step.with_loss()) {
      BRAID_RETURN_IF_ERROR(pass->Gather(context));
      BRAID_RETURN_IF_ERROR(pass->Loss(context, step.whole(), /*with_gradient=*/false));
    } else {
      BRAID_RETURN_IF_ERROR(context.Barrier());
    }
  }
  if (context.rank() == ranks_.output_rank) {
    context.Measure(Phase::kCopyOut, [&] { result->outputs = Export(gathered); });
  }
  return step.with_loss() ? context.scalars().Read(context.worker()) : absl::OkStatus();
}

absl::Status DataParallel::CommitBuffers(const RankContext& context, bool keep_earlier) {
  const auto primary = [&](size_t s) { return ranks_.replica[s][context.rank()] == size_t{0}; };
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (!primary(s)) {
      continue;
    }
    BRAID_RETURN_IF_ERROR(stages_[s]->CheckBuffers());
    if (!stages_[s]->BuffersStayFinite()) {
      buffers_finite_[context.rank()] = 0;
    }
    if (keep_earlier) {
      stages_[s]->KeepEarlierBuffers();
    }
  }
  BRAID_RETURN_IF_ERROR(context.Barrier());
  if (!BuffersFinite()) {
    return spec_.non_finite == NonFinitePolicy::kFail ? NotFiniteError("a buffer of the model")
                                                      : absl::OkStatus();
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (primary(s) && stages_[s]->has_buffers()) {
      stages_[s]->CommitBuffers();
    }
  }
  return absl::OkStatus();
}

bool DataParallel::BuffersFinite() const {
  return std::all_of(buffers_finite_.begin(), buffers_finite_.end(),
                     [](char finite) { return finite != 0; });
}

std::vector<HostTensor> DataParallel::Export(
    const std::vector<std::vector<at::Tensor>>& gathered) const {
  std::vector<HostTensor> outputs;
  for (size_t o = 0; o < gathered.front().size(); ++o) {
    std::vector<at::Tensor> pieces;
    for (const std::vector<at::Tensor>& piece : gathered) {
      pieces.push_back(piece[o]);
    }
    // The output of one chunk may be the input or a parameter; the recorded reply must outlive
    // both.
    const at::Tensor whole = pieces.size() > 1 ? at::cat(pieces) : pieces.front().clone();
    outputs.push_back(
        ToHost(whole.to(ToScalarType(config_.outputs[o].type)), config_.outputs[o].name));
  }
  return outputs;
}

absl::StatusOr<std::vector<at::Tensor>> DataParallel::ReadOutputGradients(
    const std::vector<HostTensor>& output_gradients) const {
  std::vector<at::Tensor> gradients(config_.outputs.size());
  for (size_t i = 0; i < output_gradients.size(); ++i) {
    const HostTensor& gradient = output_gradients[i];
    const std::string field = absl::StrCat("output_gradients[", i, "]");
    const auto output =
        std::find_if(config_.outputs.begin(), config_.outputs.end(),
                     [&](const TensorSpec& spec) { return spec.name == gradient.name; });
    if (output == config_.outputs.end()) {
      return InvalidField(field + ".name",
                          absl::StrCat("the model has no output '", Excerpt(gradient.name), "'"));
    }
    const auto o = static_cast<size_t>(output - config_.outputs.begin());
    if (gradients[o].defined()) {
      return InvalidField(field + ".name", absl::StrCat("output '", gradient.name,
                                                        "' is given twice (expected once)"));
    }
    if (gradient.type != output->type || gradient.shape != kept_->gathered_shape(o)) {
      const auto shape_of = [&](const std::vector<int64_t>& shape) {
        const bool moved = shape.size() == output->dims.size() + 1;
        return ShapeString(moved ? ClientShape(shape, output->batch_dim) : shape);
      };
      return InvalidField(
          absl::StrCat(field, gradient.type != output->type ? ".datatype" : ".shape"),
          absl::StrCat("the gradient of '", gradient.name, "' is ", DataTypeName(gradient.type),
                       " ", shape_of(gradient.shape), " (expected the output's ",
                       DataTypeName(output->type), " ", shape_of(kept_->gathered_shape(o)), ")"));
    }
    gradients[o] = gradient_scale() == 1 ? View(gradient) : View(gradient).mul(gradient_scale());
  }
  if (output_gradients.empty()) {
    return InvalidField("output_gradients",
                        "is empty (expected a gradient for at least one output)");
  }
  return gradients;
}

absl::Status DataParallel::CheckFiniteGradients(
    const std::vector<HostTensor>& output_gradients) const {
  // With float16 it is an overflow, which lowers the scale.
  const bool fails =
      spec_.non_finite == NonFinitePolicy::kFail && spec_.precision != Precision::kFloat16;
  for (size_t i = 0; fails && i < output_gradients.size(); ++i) {
    if (!std::isfinite(RangeShare(View(output_gradients[i])))) {
      return NotFiniteError(absl::StrCat("output_gradients[", i, "]"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OperationResult> DataParallel::Backward(
    const std::vector<HostTensor>& output_gradients) {
  if (kept_ == nullptr) {
    return absl::FailedPreconditionError(
        "no graph is kept: call Forward with keep_graph just before Backward");
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<at::Tensor> gradients, ReadOutputGradients(output_gradients));
  BRAID_RETURN_IF_ERROR(CheckFiniteGradients(output_gradients));
  if (kept_is_skipped_) {
    DropKept();
    ++skipped_batches_;
    OperationResult skipped;
    skipped.skipped = true;
    return skipped;
  }
  kept_->SetOutputGradients(std::move(gradients));
  const std::unique_ptr<TrainStep> step = NewStep(*kept_batch_, /*with_loss=*/false);
  step->AddPass(std::move(kept_));
  const absl::Status status = step->OnEachRank([&](const RankContext& context) -> absl::Status {
    BatchPass& pass = *step->passes().front();
    BRAID_RETURN_IF_ERROR(pass.ScatterGradient(context));
    BRAID_RETURN_IF_ERROR(step->Backward(context, pass));
    BRAID_RETURN_IF_ERROR(step->CheckFinite(context));
    return step->Apply(context);
  });
  return Record(*step, status);
}

absl::Status DataParallel::AddChunkLosses(const BatchPass& pass,
                                          const std::vector<at::Tensor>& outputs,
                                          Evaluation* evaluation) const {
  const std::vector<int64_t>& split = pass.split();
  for (size_t chunk = 0; chunk < split.size(); ++chunk) {
    // The weights of the trainer's loss.
    const double weight = spec_.unweighted_mean
                              ? static_cast<double>(pass.rows()) / static_cast<double>(split.size())
                              : static_cast<double>(split[chunk]);
    BRAID_RETURN_IF_ERROR(
        evaluation->AddChunk(pass.ChunkOfOutputs(outputs, chunk), split[chunk], weight));
  }
  return absl::OkStatus();
}

absl::Status DataParallel::Evaluate(const Batch& batch, Evaluation* evaluation) {
  const std::unique_ptr<TrainStep> step = NewStep(batch, /*with_loss=*/false);
  for (const int64_t rows : MicroBatches(batch.rows)) {
    step->AddMicroBatch(rows);
  }
  int64_t start = 0;
  const absl::Status status = step->OnEachRank([&](const RankContext& context) -> absl::Status {
    for (const std::unique_ptr<BatchPass>& pass : step->passes()) {
      BRAID_RETURN_IF_ERROR(pass->Split(context));
      BRAID_RETURN_IF_ERROR(pass->Forward(context, /*keep_graph=*/false));
      if (context.rank() != ranks_.output_rank) {
        continue;
      }
      BRAID_RETURN_IF_ERROR(context.Measure(Phase::kLoss, [&]() -> absl::Status {
        BRAID_ASSIGN_OR_RETURN(const std::vector<at::Tensor> outputs, pass->GatherOutputs());
        return spec_.loss_mode == LossMode::kModel
                   ? AddChunkLosses(*pass, outputs, evaluation)
                   : evaluation->Add(outputs, batch.targets, start, pass->rows());
      }));
      start += pass->rows();
    }
    return absl::OkStatus();
  });
  ResetBuffers();  // not RollBack(): a graph that is kept for Backward() stays
  return status;
}

void DataParallel::DropKept() {
  if (kept_ == nullptr) {
    return;
  }
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RunOnEach(stage->workers(), Phase::kBackward, [&](size_t r) {
      stage->replica(r).DropGraph();
      return absl::OkStatus();
    }).IgnoreError();  // only frees memory
  }
  kept_.reset();
  kept_batch_.reset();
}

absl::StatusOr<std::vector<StateTensor>> DataParallel::State(bool trained_only) {
  std::vector<StateTensor> state;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    BRAID_RETURN_IF_ERROR(RunOnEach({&stage->worker(0)}, Phase::kCopyOut, [&](size_t) {
      for (const StateEntry& entry : trained_only ? stage->trained_state() : stage->state()) {
        state.push_back({ToHost(entry.value.clone(), entry.name), entry.is_parameter});
      }
      return absl::OkStatus();
    }));
  }
  return state;
}

absl::StatusOr<std::vector<StateEntry>> DataParallel::Share(c10::Device device) {
  shared_ = true;
  std::vector<StateEntry> state;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    const std::vector<Worker*>& workers = stage->workers();
    const auto found = std::find_if(workers.begin(), workers.end(), [&](const Worker* worker) {
      return worker->torch_device() == device;
    });
    const auto near = found == workers.end() ? 0 : static_cast<size_t>(found - workers.begin());
    BRAID_RETURN_IF_ERROR(RunOnEach({&stage->worker(near)}, Phase::kCopyOut, [&](size_t) {
      for (StateEntry& entry : stage->ShareParameters(near)) {
        state.push_back({std::move(entry.name), entry.value.to(device), entry.is_parameter});
      }
      return absl::OkStatus();
    }));
    BRAID_RETURN_IF_ERROR(RunOnEach({&stage->worker(0)}, Phase::kCopyOut, [&](size_t) {
      for (const StateEntry& entry : stage->state()) {
        if (!entry.is_parameter) {
          state.push_back({entry.name, entry.value.to(device, /*non_blocking=*/false,
                                                      /*copy=*/true)});
        }
      }
      return absl::OkStatus();
    }));
  }
  return state;
}

absl::Status DataParallel::UnshareParameters() {
  if (!shared_) {
    return absl::OkStatus();
  }
  for (const std::unique_ptr<Stage>& stage : stages_) {
    BRAID_RETURN_IF_ERROR(RunOnEach(stage->workers(), Phase::kUpdate, [&](size_t r) {
      stage->UnshareParameters(r);
      return absl::OkStatus();
    }));
  }
  shared_ = false;
  return absl::OkStatus();
}

absl::StatusOr<TrainingSnapshot> DataParallel::Snapshot() {
  shared_ = true;
  TrainingSnapshot snapshot;
  for (size_t s = 0; s < stages_.size(); ++s) {
    BRAID_RETURN_IF_ERROR(SaveStage(*stages_[s], holding_[s], &snapshot));
  }
  snapshot.accumulated = accumulated_;
  snapshot.skipped_batches = skipped_batches_;
  snapshot.overflow = overflow_;
  snapshot.grad_scaler = scaler_.state();
  return snapshot;
}

absl::StatusOr<TrainingSnapshot> DataParallel::SnapshotBeforeForward() {
  // Forward() changes only buffers.
  const auto snapshot = [&]() -> absl::StatusOr<TrainingSnapshot> {
    for (const std::unique_ptr<Stage>& stage : stages_) {
      BRAID_RETURN_IF_ERROR(RunOnEach({&stage->worker(0)}, Phase::kCopyOut, [&](size_t) {
        stage->RestoreEarlierBuffers();
        return absl::OkStatus();
      }));
    }
    return Snapshot();
  };
  absl::StatusOr<TrainingSnapshot> before = snapshot();
  ResetBuffers();
  return before;
}

absl::Status DataParallel::CheckSnapshot(const TrainingSnapshot& snapshot) const {
  BRAID_RETURN_IF_ERROR(GradScaler(spec_.grad_scaler).Load(snapshot.grad_scaler));
  size_t first = 0;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    BRAID_RETURN_IF_ERROR(RunOnEach({&stage->worker(0)}, Phase::kLoad,
                                    [&](size_t) { return CheckStage(*stage, snapshot, first); }));
    first += stage->flat(0).slots().size();
  }
  if (first != snapshot.parameters.size()) {
    return absl::FailedPreconditionError("it has other trainable parameters");
  }
  return absl::OkStatus();
}

absl::Status DataParallel::Restore(const TrainingSnapshot& snapshot) {
  BRAID_RETURN_IF_ERROR(CheckSnapshot(snapshot));
  DropKept();
  BRAID_RETURN_IF_ERROR(UnshareParameters());
  GradScaler scaler(spec_.grad_scaler);
  BRAID_RETURN_IF_ERROR(scaler.Load(snapshot.grad_scaler));
  poisoned_ = true;  // until everything is restored
  size_t first = 0;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    BRAID_RETURN_IF_ERROR(RunOnEach({&stage->worker(0)}, Phase::kLoad,
                                    [&](size_t) { return RestoreStage(*stage, snapshot, first); }));
    BRAID_RETURN_IF_ERROR(RunOnEach(stage->workers(), Phase::kLoad, [&](size_t r) {
      const c10::AutoGradMode no_grad(false);
      std::vector<at::Tensor> values;
      for (const StateEntry& entry : stage->replica(0).state()) {
        values.push_back(entry.is_parameter ? entry.value : at::Tensor());
      }
      stage->SetParameters(r, values);
      RestoreGradients(*stage, snapshot, r);
      return absl::OkStatus();
    }));
    first += stage->flat(0).slots().size();
  }
  scaler_ = scaler;
  accumulated_ = snapshot.accumulated;
  skipped_batches_ = snapshot.skipped_batches;
  overflow_ = snapshot.overflow;
  for (size_t s = 0; s < stages_.size(); ++s) {
    holding_[s] = snapshot.accumulated > 0 ? stages_[s]->size() : 0;
  }
  optimizers_equal_ = false;
  prepared_ = false;
  poisoned_ = false;
  CountBytes();
  return absl::OkStatus();
}

void DataParallel::CountBytes() {
  bytes_.resize(stages_.size());
  for (size_t s = 0; s < stages_.size(); ++s) {
    bytes_[s].resize(stages_[s]->size());
    for (size_t r = 0; r < stages_[s]->size(); ++r) {
      bytes_[s][r] = stages_[s]->bytes(r);
    }
  }
}

std::vector<DeviceMemory> DataParallel::memory() const {
  std::vector<DeviceMemory> memory;
  for (size_t rank = 0; rank < ranks_.workers.size(); ++rank) {
    DeviceMemory& here = memory.emplace_back();
    here.device = ranks_.workers[rank]->name();
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (const std::optional<size_t> replica = ranks_.replica[s][rank]) {
        here.current += bytes_[s][*replica];
      }
    }
    here.peak = here.current + peaks_[rank];
  }
  return memory;
}

bool DataParallel::has_buffers() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const auto& stage) { return stage->has_buffers(); });
}

void DataParallel::RollBack() {
  // Only frees memory and copies into memory that is allocated, so it does not run out of memory.
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RunOnEach(stage->workers(), Phase::kBroadcast, [&](size_t r) {
      stage->replica(r).DropGraph();
      return absl::OkStatus();
    }).IgnoreError();
  }
  ResetBuffers();
}

void DataParallel::ResetBuffers() {
  if (!has_buffers()) {
    return;
  }
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RunOnEach(stage->workers(), Phase::kBroadcast, [&](size_t r) {
      stage->ResetBuffers(r);
      return absl::OkStatus();
    }).IgnoreError();  // copies into memory that is allocated
  }
}

}  // namespace braid
