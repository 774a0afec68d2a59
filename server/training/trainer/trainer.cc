#include "server/training/trainer/trainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/random_seed.h"
#include "server/base/status.h"
#include "server/models/input_check.h"
#include "server/training/optim/optimizer_spec.h"
#include "server/training/step/clipping.h"
#include "server/training/step/placement.h"

namespace braid {
namespace {

// A client pipelines a few operations; more that wait are a mistake, and hold their batches in
// memory.
constexpr int64_t kMaxWaiting = 64;

std::vector<std::string> DevicesOf(const Placement& placement) {
  std::vector<std::string> devices;
  for (const PlacedStage& stage : placement.stages) {
    for (const Worker* worker : stage.replicas.workers()) {
      if (std::find(devices.begin(), devices.end(), worker->name()) == devices.end()) {
        devices.push_back(worker->name());
      }
    }
  }
  return devices;
}

absl::Status CheckNumbers(const TrainerSpec& spec) {
  if (spec.micro_batch < 0) {
    return InvalidField("micro_batch",
                        absl::StrCat(spec.micro_batch, " is out of range; expected at least 0"));
  }
  if (spec.checkpoints.every_operations < 0) {
    return InvalidField(
        "checkpoints.every_operations",
        absl::StrCat(spec.checkpoints.every_operations, " is out of range; expected at least 0"));
  }
  if (spec.checkpoints.keep < 0) {
    return InvalidField("checkpoints.keep", absl::StrCat(spec.checkpoints.keep,
                                                         " is out of range; expected at least 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckSpec(const TrainerSpec& spec) {
  BRAID_RETURN_IF_ERROR(CheckOptimizer(spec.optimizer));
  BRAID_RETURN_IF_ERROR(CheckClipping(spec.clipping));
  BRAID_RETURN_IF_ERROR(CheckGradScaler(spec.grad_scaler));
  return CheckNumbers(spec);
}

// What needs a data directory.
absl::Status CheckUnstored(const TrainerSpec& spec) {
  constexpr absl::string_view kNeeds = "needs a server with --data_dir; expected 0";
  if (spec.idle_timeout > absl::ZeroDuration()) {
    return InvalidField("idle_timeout_seconds", absl::StrCat("deletes the trainer, whose state ",
                                                             "a checkpoint would keep: ", kNeeds));
  }
  if (spec.checkpoints.every_operations > 0) {
    return InvalidField("checkpoints.every_operations", kNeeds);
  }
  if (spec.checkpoints.every > absl::ZeroDuration()) {
    return InvalidField("checkpoints.every_seconds", kNeeds);
  }
  return absl::OkStatus();
}

std::vector<std::string> NotesOn(const ModelConfig& config) {
  if (config.row_independence != RowIndependence::kDependent) {
    return {};
  }
  return {absl::StrCat("Rows of a batch depend on each other in model '", config.name, "' (",
                       config.row_independence_reason,
                       "). Each replica sees its chunk alone, so results depend on the number of "
                       "replicas.")};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(TrainerSpec spec, std::string id,
                                                         const BaseModel& base,
                                                         std::unique_ptr<CheckpointStore> store,
                                                         const TrainerServices& services) {
  BRAID_RETURN_IF_ERROR(CheckSpec(spec));
  if (store == nullptr) {
    BRAID_RETURN_IF_ERROR(CheckUnstored(spec));
  }
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const Objective> objective,
                         Objective::Create(&spec, base.config));
  if (spec.base_version == 0) {
    spec.base_version = base.version;
  }
  BRAID_ASSIGN_OR_RETURN(Placement placement, Place(base.replicas, &spec));
  placement.overlap_reduction = services.overlap_reduction;
  std::vector<std::string> devices = DevicesOf(placement);
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<DataParallel> model,
                         DataParallel::Create(base.config, spec, objective, std::move(placement)));
  BRAID_ASSIGN_OR_RETURN(Schedule schedule,
                         Schedule::Create(spec.schedule, spec.optimizer, model->groups()));
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<HostModel> host_model, HostModel::CopyOf(base.replicas));
  const int64_t keep = spec.checkpoints.keep;
  std::unique_ptr<Trainer> trainer(new Trainer(
      std::move(spec), std::move(id), base.config, std::move(devices), std::move(objective),
      std::move(schedule), std::move(model), std::move(host_model), services));
  if (store != nullptr) {
    trainer->checkpointer_ =
        std::make_unique<Checkpointer>(std::move(store), trainer->host_model_.get(), keep);
  }
  return trainer;
}

Trainer::Trainer(TrainerSpec spec, std::string id, ModelConfig config,
                 std::vector<std::string> devices, std::shared_ptr<const Objective> objective,
                 Schedule schedule, std::unique_ptr<DataParallel> model,
                 std::unique_ptr<HostModel> host_model, const TrainerServices& services)
    : spec_(std::move(spec)),
      id_(std::move(id)),
      config_(std::move(config)),
      devices_(std::move(devices)),
      objective_(std::move(objective)),
      services_(services),
      host_model_(std::move(host_model)),
      model_metrics_(services_.metrics, spec_.model),
      metrics_(services_.metrics, spec_.name),
      schedule_(std::move(schedule)),
      model_(std::move(model)),
      thread_("trainer") {
  const absl::MutexLock lock(&mu_);
  UpdateInfo();
  metrics_.SetLearningRate(lr_);
}

Trainer::~Trainer() {
  const absl::MutexLock lock(&mu_);
  deleted_ = true;
}

absl::Status Trainer::Enqueue(TaskThread::Task task) {
  const absl::MutexLock lock(&mu_);
  if (waiting_ >= kMaxWaiting) {
    return absl::ResourceExhaustedError(absl::StrCat("trainer '", spec_.name, "' has ", waiting_,
                                                     " operations waiting; send fewer at a time"));
  }
  ++waiting_;
  last_used_ = absl::Now();
  thread_.Post([this, task = std::move(task)]() mutable {
    task();
    const absl::MutexLock done(&mu_);
    --waiting_;
  });
  return absl::OkStatus();
}

template <typename Done, typename Work>
void Trainer::Ask(Done done, Work work) {
  // The task may be dropped unrun, the callback may not.
  auto shared = std::make_shared<Done>(std::move(done));
  absl::Status queued = Enqueue([this, work = std::move(work), shared]() mutable {
    absl::Status alive = CheckAlive();
    if (!alive.ok()) {
      (*shared)(std::move(alive));
      return;
    }
    (*shared)(work());
  });
  if (!queued.ok()) {
    (*shared)(std::move(queued));
  }
}

void Trainer::Submit(Operation operation, OperationDone done) {
  operation.received = absl::Now();
  Ask(std::move(done),
      [this, operation = std::move(operation)]() mutable { return Apply(std::move(operation)); });
}

void Trainer::GetState(StateDone done) {
  Ask(std::move(done), [this] { return model_->State(); });
}

void Trainer::Export(ExportFormat format, ExportDone done) {
  Ask(std::move(done), [this, format]() -> absl::StatusOr<std::string> {
    BRAID_ASSIGN_OR_RETURN(const std::vector<StateTensor> state, model_->State());
    return ExportNow(format, state);
  });
}

absl::Status Trainer::CheckThere() const {
  const absl::MutexLock lock(&mu_);
  if (deleted_) {
    return absl::NotFoundError(absl::StrCat("trainer '", spec_.name, "' has been deleted"));
  }
  return absl::OkStatus();
}

absl::Status Trainer::CheckAlive() const {
  BRAID_RETURN_IF_ERROR(CheckThere());
  const absl::MutexLock lock(&mu_);
  return torn_;
}

absl::StatusOr<OperationResult> Trainer::Apply(Operation operation) {
  const absl::Time start = absl::Now();
  if (operation.dropped && operation.dropped()) {
    return absl::CancelledError("an operation before this one has failed");
  }
  if (!operation.trainer_id.empty() && operation.trainer_id != id_) {
    return absl::AbortedError(absl::StrCat(
        "sender.trainer_id: trainer '", spec_.name,
        "' is not the one that this client knows, which was deleted: attach to it anew"));
  }
  BRAID_ASSIGN_OR_RETURN(
      std::optional<OperationResult> recorded,
      sequence_.Admit(operation.sequence, operation.fingerprint, operation.last_operator));
  if (recorded) {
    metrics_.CountReplay();
    const absl::MutexLock lock(&mu_);
    recorded->durable_sequence = durable_;
    return *std::move(recorded);
  }
  BRAID_ASSIGN_OR_RETURN(OperationResult result, Execute(operation));
  result.applied_sequence = operation.sequence;
  result.phases.insert(result.phases.begin(), {"queue", start - operation.received});
  {
    const absl::MutexLock lock(&mu_);
    applied_ = operation.sequence;
    last_operator_ = operation.client_id;
    UpdateInfo();
    result.step = step_;
    result.durable_sequence = durable_;
  }
  if (!model_->keeps_graph()) {
    before_forward_.reset();
  } else if (operation.kind == OperationKind::kForward) {
    before_forward_ = sequence_;
  }
  sequence_.Record(operation.sequence, operation.fingerprint, result, operation.client_id);
  ++operations_since_checkpoint_;
  StartCheckpointIfDue(absl::Now());
  return result;
}

void Trainer::UpdateInfo() {
  accumulated_ = model_->accumulated();
  memory_ = model_->memory();
  const auto next = schedule_.Next({});
  lr_ = next.ok() ? next->front().lr : 0;
}

absl::StatusOr<Batch> Trainer::MakeBatch(Operation& operation) const {
  Batch batch;
  if (spec_.loss_mode == LossMode::kModel) {
    // The model takes its targets as inputs.
    for (HostTensor& target : operation.targets) {
      operation.inputs.push_back(std::move(target));
    }
    operation.targets.clear();
  }
  BRAID_ASSIGN_OR_RETURN(batch.inputs, CheckInputs(config_, std::move(operation.inputs), "inputs"));
  batch.rows = RowsOf(batch.inputs);
  const bool wanted = operation.kind != OperationKind::kForward || !operation.targets.empty();
  if (wanted && spec_.loss_mode != LossMode::kClient) {
    BRAID_ASSIGN_OR_RETURN(batch.targets, objective_->PickTargets(operation.targets, batch.rows));
  } else if (!operation.targets.empty()) {
    return InvalidField("targets", "are given, but the client computes the loss; expected none");
  }
  batch.mode = operation.kind == OperationKind::kForward ? operation.mode : Mode::kTrain;
  batch.seed = MixSeed(spec_.seed, static_cast<uint64_t>(operation.sequence));
  batch.report_split = operation.report_split;
  return batch;
}

absl::StatusOr<WorkResult> Trainer::RunWork(Operation& operation,
                                            const std::vector<GroupValues>& values) {
  if (operation.kind == OperationKind::kOptimStep) {
    if (model_->accumulated() == 0 && model_->left_out() == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("trainer '", spec_.name,
                       "' has no gradients to update from; call ForwardBackward first"));
    }
    return model_->Update(values);
  }
  if (operation.kind == OperationKind::kBackward) {
    return model_->Backward(operation.output_gradients);
  }
  const bool forward = operation.kind == OperationKind::kForward;
  if (!forward && spec_.loss_mode == LossMode::kClient) {
    return absl::FailedPreconditionError(
        absl::StrCat("the client computes the loss of trainer '", spec_.name,
                     "': call Forward with keep_graph, then Backward, then OptimStep"));
  }
  if (operation.keep_graph && operation.mode == Mode::kEval) {
    return InvalidField("keep_graph", "goes with MODE_TRAIN");
  }
  BRAID_ASSIGN_OR_RETURN(const Batch batch, MakeBatch(operation));
  absl::StatusOr<WorkResult> work =
      forward ? model_->Forward(batch, operation.keep_graph)
              : model_->ForwardBackward(batch,
                                        operation.kind == OperationKind::kStep ? &values : nullptr);
  if (work.ok() && work->loss) {
    metrics_.RecordLoss(*work->loss, batch.rows);
  }
  return work;
}

absl::Status Trainer::Tear(absl::string_view what, const absl::Status& failure) {
  const absl::MutexLock lock(&mu_);
  torn_ = absl::DataLossError(absl::StrCat("trainer '", spec_.name, "' is lost: ", what,
                                           " failed halfway: ", failure.message()));
  return torn_;
}

absl::StatusOr<OperationResult> Trainer::Execute(Operation& operation) {
  if (operation.kind == OperationKind::kPublish) {
    return RunPublish(operation);
  }
  const absl::Time start = absl::Now();
  // Checked first: what is wrong with the update must not come out after the backward pass.
  std::vector<GroupValues> values;
  if (operation.kind == OperationKind::kStep || operation.kind == OperationKind::kOptimStep) {
    BRAID_ASSIGN_OR_RETURN(values, schedule_.Next(operation.hyper_parameters));
  }
  if (services_.profiler != nullptr) {
    services_.profiler->Begin();
  }
  absl::StatusOr<WorkResult> work = RunWork(operation, values);
  if (services_.profiler != nullptr) {
    services_.profiler->End();
  }
  if (!work.ok()) {
    return model_->torn() ? Tear("an update", work.status()) : work.status();
  }
  Record(operation, values, *work, start);
  OperationResult result;
  result.loss = work->loss;
  result.outputs = std::move(work->outputs);
  result.chunks = std::move(work->chunks);
  result.phases = std::move(work->phases);
  result.skipped = work->skipped;
  result.gradient_norm = work->gradient_norm;
  if (work->updated) {
    result.lr = values.front().lr;
  }
  return result;
}

void Trainer::Record(const Operation& operation, const std::vector<GroupValues>& values,
                     const WorkResult& work, absl::Time start) {
  const bool trains =
      operation.kind == OperationKind::kStep || operation.kind == OperationKind::kForwardBackward;
  if (trains && work.loss && !work.skipped) {
    loss_sum_ += *work.loss;
    ++losses_;
  }
  if (work.updated) {
    const std::optional<double> loss =
        losses_ > 0 ? std::optional<double>(loss_sum_ / static_cast<double>(losses_))
                    : std::nullopt;
    schedule_.Advance(loss, operation.hyper_parameters.metric);
    metrics_.SetLearningRate(values.front().lr);
  } else if (operation.hyper_parameters.metric) {
    schedule_.Look(*operation.hyper_parameters.metric);
  }
  if (model_->accumulated() == 0) {
    // Gone with the gradients, whether an update was made of them or skipped.
    loss_sum_ = 0;
    losses_ = 0;
  }
  const bool evaluates = operation.kind == OperationKind::kForward && operation.mode == Mode::kEval;
  CountWork(work, evaluates ? absl::ZeroDuration() : absl::Now() - start);
  const absl::MutexLock lock(&mu_);
  step_ += work.updated ? 1 : 0;
  skipped_ += work.skipped ? 1 : 0;
}

void Trainer::CountWork(const WorkResult& work, absl::Duration time) {
  for (const PhaseTime& phase : work.phases) {
    metrics_.AddPhase(phase.name, phase.time);
  }
  if (work.imbalance) {
    metrics_.RecordImbalance(*work.imbalance);
  }
  if (work.gradient_norm) {
    metrics_.SetGradientNorm(*work.gradient_norm);
  }
  if (work.skipped) {
    metrics_.CountSkip();
  }
  step_time_ += time;
  if (work.updated) {
    metrics_.CountStep(std::exchange(step_time_, absl::ZeroDuration()));
  }
}

absl::StatusOr<std::shared_ptr<Evaluation>> Trainer::StartEvaluation(
    const std::vector<std::string>& metrics, int64_t k) const {
  BRAID_ASSIGN_OR_RETURN(Evaluation evaluation, Evaluation::Create(metrics, k, objective_));
  return std::make_shared<Evaluation>(std::move(evaluation));
}

void Trainer::Evaluate(std::shared_ptr<Evaluation> evaluation, std::vector<HostTensor> inputs,
                       std::vector<HostTensor> targets, EvaluateDone done) {
  Operation operation;
  operation.kind = OperationKind::kForward;
  operation.mode = Mode::kEval;
  operation.inputs = std::move(inputs);
  operation.targets = std::move(targets);
  Ask(std::move(done),
      [this, evaluation = std::move(evaluation),
       operation = std::move(operation)]() mutable -> absl::StatusOr<int64_t> {
        std::vector<HostTensor> measured;
        if (spec_.loss_mode != LossMode::kModel) {
          measured = std::exchange(operation.targets, {});
        }
        BRAID_ASSIGN_OR_RETURN(Batch batch, MakeBatch(operation));
        BRAID_ASSIGN_OR_RETURN(batch.targets, objective_->PickTargets(measured, batch.rows));
        BRAID_RETURN_IF_ERROR(model_->Evaluate(batch, evaluation.get()));
        const absl::MutexLock lock(&mu_);
        return step_;
      });
}

TrainerInfo Trainer::info() const {
  const absl::MutexLock lock(&mu_);
  return {spec_,    devices_, step_,   applied_, durable_,       accumulated_,
          skipped_, lr_,      memory_, id_,      last_operator_, NotesOn(config_)};
}

void Trainer::GetSettled(InfoDone done) {
  auto shared = std::make_shared<InfoDone>(std::move(done));
  // Also of a trainer that is torn: its client wants to know where it stands.
  absl::Status queued = Enqueue([this, shared] {
    absl::Status there = CheckThere();
    (*shared)(there.ok() ? absl::StatusOr<TrainerInfo>(info()) : std::move(there));
  });
  if (!queued.ok()) {
    (*shared)(std::move(queued));
  }
}

TrainerState Trainer::state() const {
  const absl::MutexLock lock(&mu_);
  return {!torn_.ok(), memory_};
}

bool Trainer::RetireAt(int64_t sequence) {
  const absl::MutexLock lock(&mu_);
  deleted_ = deleted_ || (waiting_ == 0 && applied_ == sequence);
  return deleted_;
}

absl::Time Trainer::last_used() const {
  const absl::MutexLock lock(&mu_);
  return waiting_ > 0 ? absl::Now() : last_used_;
}

}  // namespace braid
