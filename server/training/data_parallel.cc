#include "server/training/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/ops/cat.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/devices/gang.h"
#include "server/devices/run_on.h"
#include "server/parallel/finite.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

constexpr Phase kReported[] = {Phase::kCopyIn, Phase::kForward, Phase::kLoss,      Phase::kBackward,
                               Phase::kReduce, Phase::kUpdate,  Phase::kBroadcast, Phase::kCopyOut};

std::vector<PhaseTime> ReportPhases(const PhaseTimes& times) {
  std::vector<PhaseTime> phases;
  for (const Phase phase : kReported) {
    phases.push_back({std::string(PhaseName(phase)), times.longest(phase)});
  }
  return phases;
}

absl::Status NotFinite(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(what,
                   " is not finite: the batch was left out and nothing has changed; lower the "
                   "learning rate, clip the gradients, or have such batches skipped "
                   "(non_finite)"));
}

// Copies the tensors out of the request's memory, which a kept graph outlives.
void Own(std::vector<HostTensor>* tensors) {
  for (HostTensor& tensor : *tensors) {
    auto bytes = std::make_shared<std::string>(static_cast<const char*>(tensor.data), tensor.bytes);
    tensor.data = bytes->data();
    tensor.owner = std::move(bytes);
  }
}

}  // namespace

// One operation on its way through a gang.
struct DataParallel::Run {
  Run(const DataParallel& trained, const Batch& worked_on)
      : batch(worked_on),
        times(trained.roster_.workers.size()),
        finite(trained.roster_.workers.size(), 1),
        changing(trained.roster_.workers.size(), 0) {
    batch.gradient_scale = trained.gradient_scale();
  }

  void AddPass(std::unique_ptr<BatchPass> pass) {
    passes.push_back(std::move(pass));
    for (RankGroup& group : passes.back()->RankGroups()) {
      groups.push_back(std::move(group));
    }
  }
  void AddPasses(const DataParallel& trained) {
    int64_t start = 0;
    for (const int64_t rows : trained.Pieces(batch.rows)) {
      AddPass(std::make_unique<BatchPass>(trained.model(), batch, start, rows, groups.size()));
      start += rows;
    }
  }

  double loss() const {
    double sum = 0;
    for (const auto& pass : passes) {
      sum += pass->loss();
    }
    return sum;
  }

  Batch batch;  // the passes refer to it
  std::vector<std::unique_ptr<BatchPass>> passes;
  std::vector<RankGroup> groups;
  // What the losses divide by over the whole batch; the output rank writes it.
  std::vector<double> whole;
  // The gradients are kept apart until it is known that they count.
  bool hold = false;
  // The flat gradients as they were, by stage and replica, where they cannot be kept apart.
  std::vector<std::vector<SavedGradients>> saved;
  std::unique_ptr<UpdatePass> update;
  PhaseTimes times;
  // By rank; each writes its own.
  std::vector<char> finite;
  // It has begun to change what the trainer is.
  std::vector<char> changing;
};

absl::StatusOr<std::unique_ptr<DataParallel>> DataParallel::Create(
    const ModelConfig& config, TrainerSpec spec, std::shared_ptr<const Objective> objective,
    Placement placement) {
  if (!config.batched()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", config.name,
                     "' is not batched (max_batch_size: 0): its batches cannot "
                     "be split over replicas"));
  }
  std::unique_ptr<DataParallel> trained(
      new DataParallel(config, std::move(spec), std::move(objective), placement));
  BRAID_RETURN_IF_ERROR(trained->Init(std::move(placement)));
  return trained;
}

DataParallel::DataParallel(const ModelConfig& config, TrainerSpec spec,
                           std::shared_ptr<const Objective> objective, const Placement& placement)
    : config_(config),
      spec_(std::move(spec)),
      objective_(std::move(objective)),
      roster_(placement),
      scaler_(spec_.grad_scaler),
      sync_(spec_.sync, /*measure=*/false) {}

DataParallel::~DataParallel() { DropKept(); }

absl::Status DataParallel::Init(Placement placement) {
  bool nccl = false;
  std::vector<std::string> names;
  for (PlacedStage& placed : placement.stages) {
    BRAID_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage, Stage::Create(std::move(placed)));
    nccl = nccl || stage->link() == Link::kNccl;
    for (std::string& name : stage->ParameterNames()) {
      names.push_back(std::move(name));
    }
    stages_.push_back(std::move(stage));
  }
  if (names.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", config_.name, "' has no parameter that requires a gradient"));
  }
  sync_ = SyncChoice(spec_.sync, /*measure=*/!nccl);
  holding_.assign(stages_.size(), 0);
  BRAID_ASSIGN_OR_RETURN(groups_, ParameterGroups::Create(spec_.groups, names));
  size_t first = 0;
  for (const std::unique_ptr<Stage>& stage : stages_) {
    const size_t count = stage->flat(0).slots().size();
    const ParameterGroups mine = groups_->Range(first, count);
    BRAID_RETURN_IF_ERROR(RunOnEach(stage->workers(), Phase::kLoad, [&](size_t r) {
      for (size_t p = 0; p < count; ++p) {
        if (mine.frozen(p)) {
          stage->replica(r).Freeze(p);
        }
      }
      return absl::OkStatus();
    }));
    stage->MakeOptimizer(spec_.optimizer, mine);
    first += count;
  }
  peaks_.assign(roster_.workers.size(), 0);
  CountBytes();
  return absl::OkStatus();
}

TrainedModel DataParallel::model() const {
  TrainedModel model{&spec_, objective_.get(), &roster_, {}};
  for (const std::unique_ptr<Stage>& stage : stages_) {
    model.stages.push_back(stage.get());
  }
  return model;
}

std::vector<int64_t> DataParallel::Pieces(int64_t rows) const {
  if (spec_.micro_batch == 0) {
    return {rows};
  }
  // So many rows that no replica of any stage gets more than a micro-batch.
  size_t fewest = stages_.front()->size();
  for (const std::unique_ptr<Stage>& stage : stages_) {
    fewest = std::min(fewest, stage->size());
  }
  const int64_t most = spec_.micro_batch * static_cast<int64_t>(fewest);
  std::vector<int64_t> pieces;
  for (int64_t start = 0; start < rows; start += most) {
    pieces.push_back(std::min(most, rows - start));
  }
  return pieces;
}

absl::Status DataParallel::SaveGradients(Run& run) {
  if (accumulated_ == 0 || run.hold) {
    return absl::OkStatus();
  }
  run.saved.resize(stages_.size());
  for (size_t s = 0; s < stages_.size(); ++s) {
    run.saved[s].resize(stages_[s]->size());
    BRAID_RETURN_IF_ERROR(RunOnEach(stages_[s]->workers(), Phase::kBackward, [&](size_t r) {
      run.saved[s][r] = stages_[s]->flat(r).SaveGradients();
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

absl::Status DataParallel::MakeUpdate(Run& run, const std::vector<size_t>& holding,
                                      const std::vector<GroupValues>& values) {
  BRAID_RETURN_IF_ERROR(PrepareOptimizers(values));
  const bool all_reduce = roster_.workers.size() > 1 && sync_.all_reduce();
  if (all_reduce) {
    BRAID_RETURN_IF_ERROR(EqualizeOptimizers());
  }
  optimizers_equal_ = all_reduce;
  run.update = std::make_unique<UpdatePass>(model(), holding, values, gradient_scale(), all_reduce);
  return absl::OkStatus();
}

absl::Status DataParallel::PrepareOptimizers(const std::vector<GroupValues>& values) {
  for (size_t s = 0; !prepared_ && s < stages_.size(); ++s) {
    Stage& stage = *stages_[s];
    BRAID_RETURN_IF_ERROR(RunOnEach({&stage.worker(0)}, Phase::kUpdate, [&](size_t) {
      // Whatever a step may reach.
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

absl::Status DataParallel::Compute(Run& run, Gang& gang, size_t rank) {
  const bool by_parts = run.passes.size() > 1 || spec_.loss_mode != LossMode::kCentral;
  if (by_parts && rank == roster_.output_rank) {
    // The others need it after the forward pass, which ends with a meeting.
    BRAID_ASSIGN_OR_RETURN(run.whole,
                           objective_->Denominators(run.batch.targets, 0, run.batch.rows));
  }
  for (size_t k = 0; k < run.passes.size(); ++k) {
    BatchPass& pass = *run.passes[k];
    const bool first = accumulated_ == 0 && k == 0;
    BRAID_RETURN_IF_ERROR(pass.Forward(gang, rank, /*keep_graph=*/true, &run.times));
    BRAID_RETURN_IF_ERROR(pass.Loss(gang, rank, run.whole, /*with_gradient=*/true, &run.times));
    BRAID_RETURN_IF_ERROR(pass.Backward(gang, rank, first, run.hold, &run.times));
  }
  return Examine(run, gang, rank);
}

absl::Status DataParallel::Examine(Run& run, Gang& gang, size_t rank) {
  return run.times.Measure(gang, rank, Phase::kBackward, [&]() -> absl::Status {
    bool finite = !run.hold || run.passes.front()->HeldAreFinite(rank);
    for (size_t s = 0; s < stages_.size(); ++s) {
      const std::optional<size_t> replica = roster_.replica[s][rank];
      if (replica == size_t{0}) {
        BRAID_RETURN_IF_ERROR(stages_[s]->CheckBuffers());
      }
      if (replica && !run.hold) {
        for (const at::Tensor& gradients : stages_[s]->flat(*replica).gradients()) {
          finite = finite && IsFinite(gradients);
        }
      }
    }
    run.finite[rank] = finite ? 1 : 0;
    return absl::OkStatus();
  });
}

absl::StatusOr<DataParallel::Verdict> DataParallel::Judge(const Run& run) const {
  Verdict verdict;
  const bool finite = std::all_of(run.finite.begin(), run.finite.end(), [](char f) { return f; });
  const double loss = run.loss();
  if (std::isfinite(loss) && finite) {
    return verdict;
  }
  if (std::isfinite(loss) && spec_.precision == Precision::kFloat16) {
    verdict.overflow = true;
    return verdict;
  }
  if (spec_.non_finite == NonFinitePolicy::kFail) {
    return NotFinite(std::isfinite(loss) ? std::string("a gradient")
                                         : absl::StrCat("the loss (", loss, ")"));
  }
  verdict.counts = false;
  return verdict;
}

absl::Status DataParallel::Apply(Run& run, Gang& gang, size_t rank) {
  BRAID_ASSIGN_OR_RETURN(const Verdict verdict, Judge(run));
  run.changing[rank] = 1;
  if (verdict.counts && run.hold) {
    run.passes.front()->Release(rank);
    // An update sums what all have released.
    BRAID_RETURN_IF_ERROR(gang.Meet(rank));
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    const std::optional<size_t> replica = roster_.replica[s][rank];
    if (replica == size_t{0} && stages_[s]->has_buffers()) {
      if (verdict.counts) {
        stages_[s]->CommitBuffers();
      } else {
        stages_[s]->ResetBuffers(0);
      }
    }
    if (replica && !verdict.counts && !run.saved.empty()) {
      stages_[s]->flat(*replica).RestoreGradients(run.saved[s][*replica]);
    }
  }
  if (run.update == nullptr || !verdict.counts || verdict.overflow || overflow_) {
    return absl::OkStatus();
  }
  return run.update->Run(gang, rank, &run.times);
}

absl::Status DataParallel::Recover(Run& run, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  if (std::any_of(run.changing.begin(), run.changing.end(), [](char c) { return c; })) {
    torn_ = true;
    return status;
  }
  RollBack();
  for (size_t s = 0; s < run.saved.size(); ++s) {
    RunOnEach(stages_[s]->workers(), Phase::kBackward, [&](size_t r) {
      stages_[s]->flat(r).RestoreGradients(run.saved[s][r]);
      return absl::OkStatus();
    }).IgnoreError();  // copies into memory that is there
  }
  return status;
}

absl::StatusOr<WorkResult> DataParallel::ForwardBackward(const Batch& batch,
                                                         const std::vector<GroupValues>* update) {
  DropKept();
  Run run(*this, batch);
  run.AddPasses(*this);
  run.hold = accumulated_ > 0 && run.passes.size() == 1;
  BRAID_RETURN_IF_ERROR(SaveGradients(run));
  std::vector<size_t> holding = HoldingAfter(run);
  if (update != nullptr) {
    BRAID_RETURN_IF_ERROR(MakeUpdate(run, holding, *update));
  }
  const absl::Status status =
      RunGang(roster_.workers, run.groups, [&](Gang& gang, size_t rank) -> absl::Status {
        const PeakMemory peak(gang.worker(rank).device(), &peaks_[rank]);
        BRAID_RETURN_IF_ERROR(Compute(run, gang, rank));
        BRAID_RETURN_IF_ERROR(gang.Meet(rank));
        return Apply(run, gang, rank);
      });
  BRAID_RETURN_IF_ERROR(Recover(run, status));
  BRAID_ASSIGN_OR_RETURN(const Verdict verdict, Judge(run));
  WorkResult result;
  result.loss = run.loss();
  result.skipped = !verdict.counts;
  if (verdict.counts) {
    ++accumulated_;
    holding_ = std::move(holding);
    overflow_ = overflow_ || verdict.overflow;
    if (run.update != nullptr) {
      ConcludeUpdate(run, &result);
    }
  }
  Report(run, &result);
  return result;
}

void DataParallel::ConcludeUpdate(Run& run, WorkResult* result) {
  if (overflow_) {
    result->skipped = true;
  } else {
    run.update->Commit();
    result->updated = true;
    result->gradient_norm = run.update->gradient_norm();
    sync_.Record(run.times.longest(Phase::kReduce) + run.times.longest(Phase::kUpdate) +
                 run.times.longest(Phase::kBroadcast));
  }
  if (spec_.precision == Precision::kFloat16) {
    scaler_.Update(overflow_);
  }
  accumulated_ = 0;
  overflow_ = false;
  holding_.assign(stages_.size(), 0);
}

void DataParallel::Report(const Run& run, WorkResult* result) {
  result->phases = ReportPhases(run.times);
  for (const auto& pass : run.passes) {
    for (TrainingChunk& chunk : pass->Report()) {
      result->chunks.push_back(std::move(chunk));
    }
  }
}

absl::StatusOr<WorkResult> DataParallel::Update(const std::vector<GroupValues>& values) {
  DropKept();
  const Batch none;
  Run run(*this, none);
  WorkResult result;
  if (!overflow_) {
    BRAID_RETURN_IF_ERROR(MakeUpdate(run, holding_, values));
    BRAID_RETURN_IF_ERROR(Recover(run, RunGang(roster_.workers, {}, [&](Gang& gang, size_t rank) {
                                    run.changing[rank] = 1;
                                    return run.update->Run(gang, rank, &run.times);
                                  })));
  }
  ConcludeUpdate(run, &result);
  Report(run, &result);
  return result;
}

absl::StatusOr<WorkResult> DataParallel::Forward(const Batch& batch, bool keep_graph) {
  DropKept();
  Run run(*this, batch);
  std::unique_ptr<Batch> kept;
  if (keep_graph) {
    kept = std::make_unique<Batch>(batch);
    Own(&kept->inputs);
    run.AddPass(std::make_unique<BatchPass>(model(), *kept, 0, batch.rows, /*groups=*/0));
  } else {
    run.AddPasses(*this);
  }
  const bool training = batch.mode == Mode::kTrain;
  WorkResult result;
  std::vector<std::vector<at::Tensor>> gathered(run.passes.size());
  absl::Status status =
      RunGang(roster_.workers, run.groups, [&](Gang& gang, size_t rank) -> absl::Status {
        const PeakMemory peak(gang.worker(rank).device(), &peaks_[rank]);
        const bool with_loss = !batch.targets.empty() || spec_.loss_mode == LossMode::kModel;
        if (with_loss && rank == roster_.output_rank) {
          BRAID_ASSIGN_OR_RETURN(run.whole, objective_->Denominators(batch.targets, 0, batch.rows));
        }
        for (size_t k = 0; k < run.passes.size(); ++k) {
          BRAID_RETURN_IF_ERROR(run.passes[k]->Forward(gang, rank, keep_graph, &run.times));
          if (rank == roster_.output_rank) {
            BRAID_ASSIGN_OR_RETURN(gathered[k], run.passes[k]->GatherOutputs());
          }
          if (with_loss) {
            BRAID_RETURN_IF_ERROR(run.passes[k]->Loss(gang, rank, run.whole,
                                                      /*with_gradient=*/false, &run.times));
          }
        }
        if (rank == roster_.output_rank) {
          BRAID_RETURN_IF_ERROR(run.times.Measure(gang, rank, Phase::kCopyOut, [&] {
            result.outputs = Export(gathered);
            return absl::OkStatus();
          }));
        }
        return training ? ExamineBuffers(gang, rank) : absl::OkStatus();
      });
  if (!status.ok() || (!training && has_buffers())) {
    RollBack();  // an evaluation changes nothing, whatever the model does in it
  }
  BRAID_RETURN_IF_ERROR(status);
  if (!batch.targets.empty() || spec_.loss_mode == LossMode::kModel) {
    result.loss = run.loss();
  }
  Report(run, &result);
  if (keep_graph) {
    kept_batch_ = std::move(kept);
    kept_ = std::move(run.passes.front());
  }
  return result;
}

std::vector<HostTensor> DataParallel::Export(
    const std::vector<std::vector<at::Tensor>>& gathered) const {
  std::vector<HostTensor> outputs;
  for (size_t o = 0; o < gathered.front().size(); ++o) {
    std::vector<at::Tensor> pieces;
    for (const std::vector<at::Tensor>& piece : gathered) {
      pieces.push_back(piece[o]);
    }
    // What was not gathered from several chunks may be the input or a parameter; the recorded reply
    // must outlive both.
    const at::Tensor whole = pieces.size() > 1 ? at::cat(pieces) : pieces.front().clone();
    outputs.push_back(
        ToHost(whole.to(ToScalarType(config_.outputs[o].type)), config_.outputs[o].name));
  }
  return outputs;
}

absl::Status DataParallel::ExamineBuffers(Gang& gang, size_t rank) {
  const auto primary = [&](size_t s) { return roster_.replica[s][rank] == size_t{0}; };
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (primary(s)) {
      BRAID_RETURN_IF_ERROR(stages_[s]->CheckBuffers());
    }
  }
  BRAID_RETURN_IF_ERROR(gang.Meet(rank));
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (primary(s) && stages_[s]->has_buffers()) {
      stages_[s]->CommitBuffers();
    }
  }
  return absl::OkStatus();
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
      return InvalidField(field + ".name",
                          absl::StrCat("output '", gradient.name, "' is there twice"));
    }
    if (gradient.type != output->type || gradient.shape != kept_->gathered_shape(o)) {
      return InvalidField(
          absl::StrCat(field, gradient.type != output->type ? ".datatype" : ".shape"),
          absl::StrCat("the gradient of '", gradient.name, "' is ", DataTypeName(gradient.type),
                       " ", ShapeString(gradient.shape), "; expected the output's ",
                       DataTypeName(output->type), " ", ShapeString(kept_->gathered_shape(o))));
    }
    gradients[o] = gradient_scale() == 1 ? View(gradient) : View(gradient).mul(gradient_scale());
  }
  if (output_gradients.empty()) {
    return InvalidField("output_gradients", "is empty; expected one for at least one output");
  }
  return gradients;
}

absl::StatusOr<WorkResult> DataParallel::Backward(const std::vector<HostTensor>& output_gradients) {
  if (kept_ == nullptr) {
    return absl::FailedPreconditionError(
        "no graph is kept: call Forward with keep_graph just before Backward");
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<at::Tensor> gradients, ReadOutputGradients(output_gradients));
  kept_->SetOutputGradients(std::move(gradients));
  Run run(*this, *kept_batch_);
  run.AddPass(std::move(kept_));
  run.hold = accumulated_ > 0;
  std::vector<size_t> holding = HoldingAfter(run);
  const absl::Status status =
      RunGang(roster_.workers, run.groups, [&](Gang& gang, size_t rank) -> absl::Status {
        const PeakMemory peak(gang.worker(rank).device(), &peaks_[rank]);
        BRAID_RETURN_IF_ERROR(
            run.passes.front()->Backward(gang, rank, accumulated_ == 0, run.hold, &run.times));
        BRAID_RETURN_IF_ERROR(Examine(run, gang, rank));
        BRAID_RETURN_IF_ERROR(gang.Meet(rank));
        return Apply(run, gang, rank);
      });
  BRAID_RETURN_IF_ERROR(Recover(run, status));
  BRAID_ASSIGN_OR_RETURN(const Verdict verdict, Judge(run));
  WorkResult result;
  result.skipped = !verdict.counts;
  if (verdict.counts) {
    ++accumulated_;
    holding_ = std::move(holding);
    overflow_ = overflow_ || verdict.overflow;
  }
  Report(run, &result);
  return result;
}

absl::Status DataParallel::Evaluate(const Batch& batch, Evaluation* evaluation) {
  DropKept();
  Run run(*this, batch);
  run.AddPasses(*this);
  int64_t start = 0;
  const absl::Status status =
      RunGang(roster_.workers, run.groups, [&](Gang& gang, size_t rank) -> absl::Status {
        for (const auto& pass : run.passes) {
          BRAID_RETURN_IF_ERROR(pass->Forward(gang, rank, /*keep_graph=*/false, &run.times));
          if (rank == roster_.output_rank) {
            BRAID_RETURN_IF_ERROR(
                run.times.Measure(gang, rank, Phase::kLoss, [&]() -> absl::Status {
                  BRAID_ASSIGN_OR_RETURN(const std::vector<at::Tensor> outputs,
                                         pass->GatherOutputs());
                  return evaluation->Add(outputs, batch.targets, start, pass->rows());
                }));
            start += pass->rows();
          }
        }
        return absl::OkStatus();
      });
  if (!status.ok() || has_buffers()) {
    RollBack();
  }
  return status;
}

bool DataParallel::has_buffers() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const auto& stage) { return stage->has_buffers(); });
}

std::vector<size_t> DataParallel::HoldingAfter(const Run& run) const {
  // Fewer rows may be more chunks: 4 rows on 3 replicas are 2 and 2.
  std::vector<size_t> holding = holding_;
  for (const auto& pass : run.passes) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      holding[s] = std::max(holding[s], pass->chunks(s));
    }
  }
  return holding;
}

void DataParallel::RollBack() {
  // Only drops memory and writes into memory that is there already: it cannot fail where the
  // operation could.
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RunOnEach(stage->workers(), Phase::kBroadcast, [&](size_t r) {
      stage->replica(r).DropGraph();
      stage->ResetBuffers(r);
      return absl::OkStatus();
    }).IgnoreError();
  }
}

void DataParallel::DropKept() {
  if (kept_ == nullptr) {
    return;
  }
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RunOnEach(stage->workers(), Phase::kBackward, [&](size_t r) {
      stage->replica(r).DropGraph();
      return absl::OkStatus();
    }).IgnoreError();  // frees memory
  }
  kept_.reset();
  kept_batch_.reset();
}

}  // namespace braid
