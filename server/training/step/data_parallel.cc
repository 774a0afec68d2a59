#include "server/training/step/data_parallel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/devices/worker_group.h"
#include "server/training/step/data_parallel_run.h"

namespace braid {
namespace {

// Shapes of batches that a trainer remembers.
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

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallel>> DataParallel::Create(
    const ModelConfig& config, TrainerSpec spec, std::shared_ptr<const Objective> objective,
    Placement placement) {
  if (!config.batched()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", config.name,
                     "' is not batched (max_batch_size: 0): its batches cannot "
                     "be split over replicas; if dim 0 is the batch, set "
                     "parameters[\"row_independence\"] to \"dependent\" in config.pbtxt"));
  }
  for (const TensorSpec& input : config.inputs) {
    if (input.scalar && !input.default_value) {
      return absl::FailedPreconditionError(absl::StrCat(
          "argument '", input.name, "' of model '", config.name,
          "' is a number without a default, which training gives no value; give it a default"));
    }
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
  // Replicas that make their own updates need parameters of their own.
  const bool share_parameters = !nccl && !any(Link::kCopies) && spec_.sync != SyncMode::kAllReduce;
  std::vector<std::string> names;
  for (PlacedStage& placed : placement.stages) {
    BRAID_ASSIGN_OR_RETURN(std::unique_ptr<Stage> stage,
                           Stage::Create(std::move(placed), share_parameters));
    for (std::string& name : stage->ParameterNames()) {
      names.push_back(std::move(name));
    }
    stages_.push_back(std::move(stage));
  }
  if (names.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", config_.name, "' has no parameter that requires a gradient"));
  }
  sync_ = SyncChoice(share_parameters ? SyncMode::kReduceBroadcast : spec_.sync,
                     /*measure=*/!nccl);
  holding_.assign(stages_.size(), 0);
  BRAID_ASSIGN_OR_RETURN(groups_, ParameterGroups::Create(spec_.groups, names));
  size_t first = 0;
  for (size_t s = 0; s < stages_.size(); ++s) {
    const std::unique_ptr<Stage>& stage = stages_[s];
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
    BRAID_RETURN_IF_ERROR(CheckAdditive(s));
    stage->MakeOptimizer(spec_.optimizer, mine);
    first += count;
  }
  peaks_.assign(roster_.workers.size(), 0);
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
    parameter = stage.replica(0).NonAdditiveParameter();
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
      " depends on how often each index occurs in the whole batch (scale_grad_by_freq); expected "
      "one device and no micro_batch, or a model with scale_grad_by_freq=False"));
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
  // Not their product, which may be more than there are numbers.
  const auto replicas = static_cast<int64_t>(fewest);
  const int64_t most = spec_.micro_batch >= rows ? rows : spec_.micro_batch * replicas;
  // As even as can be: what looks at all rows of a piece would not see one alone at the end.
  const int64_t count = (rows + most - 1) / most;
  std::vector<int64_t> pieces(static_cast<size_t>(count), rows / count);
  std::fill_n(pieces.begin(), rows % count, rows / count + 1);
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
  ReduceMeanwhile(run, all_reduce);
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

absl::Status DataParallel::Compute(Run& run, WorkerGroup& worker_group, size_t rank) {
  const bool by_parts = run.passes.size() > 1 || spec_.loss_mode != LossMode::kCentral;
  if (by_parts && rank == roster_.output_rank) {
    // The others need it after the forward pass, which ends with a meeting.
    BRAID_ASSIGN_OR_RETURN(run.whole,
                           objective_->Denominators(run.batch.targets, 0, run.batch.rows));
  }
  for (size_t k = 0; k < run.passes.size(); ++k) {
    BatchPass& pass = *run.passes[k];
    const bool first = accumulated_ == 0 && k == 0;
    BRAID_RETURN_IF_ERROR(pass.Forward(worker_group, rank, /*keep_graph=*/true, &run.times));
    BRAID_RETURN_IF_ERROR(
        pass.Loss(worker_group, rank, run.whole, /*with_gradient=*/true, &run.times));
    BRAID_RETURN_IF_ERROR(pass.Backward(worker_group, rank, first, run.hold, &run.times));
  }
  return Examine(run, worker_group, rank);
}

bool DataParallel::SumsFirst(const Run& run) const {
  if (accumulated_ > 0) {
    return false;
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    if (stages_[s]->link() == Link::kNccl && !run.summed(s)) {
      return true;
    }
  }
  return false;
}

absl::Status DataParallel::Apply(Run& run, WorkerGroup& worker_group, size_t rank) {
  BRAID_ASSIGN_OR_RETURN(const Verdict verdict, Judge(run));
  const bool updates = run.update != nullptr && verdict.counts && !verdict.overflow && !overflow_;
  if (updates && SumsFirst(run)) {
    BRAID_RETURN_IF_ERROR(run.update->Sum(worker_group, rank, &run.times));
    BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
  }
  run.changing[rank] = 1;
  if (verdict.counts && run.hold && !run.direct) {
    run.passes.front()->Release(rank);
    // An update sums what all have released.
    BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
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
  return updates ? run.update->Run(worker_group, rank, &run.times) : absl::OkStatus();
}

absl::Status DataParallel::Recover(Run& run, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  if (std::any_of(run.changing.begin(), run.changing.end(), [](char c) { return c; })) {
    torn_ = true;
    return status;
  }
  for (const auto& pass : run.passes) {
    RunOnEach(roster_.workers, Phase::kReduce, [&](size_t rank) {
      return pass->WaitForReduces(rank);
    }).IgnoreError();  // what has begun ends before its memory is used again
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
  // Summed from where the backward pass leaves them.
  run.direct = update != nullptr && accumulated_ == 0 && run.passes.size() == 1 &&
               std::all_of(stages_.begin(), stages_.end(),
                           [](const auto& stage) { return stage->link() == Link::kSharedMemory; });
  run.hold = run.direct || (accumulated_ > 0 && run.passes.size() == 1);
  BRAID_RETURN_IF_ERROR(SaveGradients(run));
  std::vector<size_t> holding = HoldingAfter(run);
  if (update != nullptr) {
    BRAID_RETURN_IF_ERROR(MakeUpdate(run, holding, *update));
  }
  const absl::Status status = RunWorkerGroup(
      roster_.workers, run.groups, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        const PeakMemory peak(worker_group.worker(rank).device(), &peaks_[rank]);
        BRAID_RETURN_IF_ERROR(Compute(run, worker_group, rank));
        BRAID_RETURN_IF_ERROR(ExamineSum(run, worker_group, rank));
        return Apply(run, worker_group, rank);
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
      if (overlap_reduction_ && settled_.size() < kMaxShapes) {
        settled_.insert(ShapesOf(batch));
      }
    }
  } else if (update == nullptr) {
    ++left_out_;
  }
  Report(run, &result);
  return result;
}

void DataParallel::ReduceMeanwhile(Run& run, bool all_reduce) {
  // Micro-batches and earlier batches are summed on each replica first.
  if (accumulated_ > 0 || run.passes.size() != 1) {
    return;
  }
  // A collective under way waits for all its GPUs, and an allocation on one may wait for the
  // collective and hold up its launch on another. Batches of shapes that have run before find their
  // memory in the allocator's caches and their kernels loaded.
  if (!overlap_reduction_ || !settled_.contains(ShapesOf(run.batch))) {
    return;
  }
  std::vector<OverlappedReduce*> reduces(stages_.size());
  run.reduces.resize(stages_.size());
  for (size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = *stages_[s];
    if (stage.link() != Link::kNccl) {
      continue;
    }
    std::vector<bool> frozen;
    for (const Parameter& parameter : stage.replica(0).parameters()) {
      frozen.push_back(!parameter.value.requires_grad());
    }
    std::vector<FlatParameters*> flat;
    for (size_t r = 0; r < stage.size(); ++r) {
      flat.push_back(&stage.flat(r));
    }
    run.reduces[s] = std::make_unique<OverlappedReduce>(stage.communicator(), std::move(flat),
                                                        frozen, all_reduce);
    reduces[s] = run.reduces[s].get();
    run.update->SkipReduce(s);
  }
  run.passes.front()->ReduceMeanwhile(std::move(reduces));
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
  left_out_ = 0;
  overflow_ = false;
  holding_.assign(stages_.size(), 0);
}

void DataParallel::Report(const Run& run, WorkResult* result) const {
  result->phases = ReportPhases(run.times);
  result->imbalance = run.times.imbalance(roster_.computing);
  for (const auto& pass : run.passes) {
    for (TrainingChunk& chunk : pass->Report()) {
      result->chunks.push_back(std::move(chunk));
    }
  }
}

absl::StatusOr<WorkResult> DataParallel::Update(const std::vector<GroupValues>& values) {
  DropKept();
  WorkResult result;
  if (accumulated_ == 0) {
    left_out_ = 0;
    result.skipped = true;
    return result;
  }
  const Batch none;
  Run run(*this, none);
  if (!overflow_) {
    BRAID_RETURN_IF_ERROR(MakeUpdate(run, holding_, values));
    BRAID_RETURN_IF_ERROR(Recover(
        run, RunWorkerGroup(roster_.workers, {}, [&](WorkerGroup& worker_group, size_t rank) {
          run.changing[rank] = 1;
          return run.update->Run(worker_group, rank, &run.times);
        })));
  }
  ConcludeUpdate(run, &result);
  Report(run, &result);
  return result;
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
    }).IgnoreError();  // writes into memory that is there
  }
}

}  // namespace braid
