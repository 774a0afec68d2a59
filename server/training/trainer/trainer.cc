#include "server/training/trainer/trainer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/base/field_error.h"
#include "server/base/random_id.h"
#include "server/base/random_seed.h"
#include "server/base/status.h"
#include "server/base/torch_version.h"
#include "server/base/wait_for.h"
#include "server/batching/batch_queue.h"
#include "server/devices/run_on.h"
#include "server/models/batch_layout.h"
#include "server/models/input_check.h"
#include "server/storage/model_files.h"
#include "server/storage/safetensors.h"
#include "server/telemetry/log.h"
#include "server/training/optim/optimizer_spec.h"
#include "server/training/step/clipping.h"
#include "server/training/step/placement.h"
#include "server/training/trainer/job_gate.h"

namespace braid {
namespace {

// A client pipelines a few operations. More in the queue are a mistake and keep their batches in
// memory.
constexpr int64_t kMaxWaiting = 64;

// Limits of what a restart applies again from the journal: beyond them a checkpoint is written.
constexpr absl::Duration kMaxReplay = absl::Seconds(30);
// A restart that took longer to apply the journal writes a checkpoint, so that the next one does
// not.
constexpr absl::Duration kLongReplay = absl::Seconds(1);
// A checkpoint that takes long, or is large, is written less often.
constexpr int kReplayPerCheckpointTime = 20;
constexpr int64_t kMaxJournal = int64_t{1} << 30;

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

bool OfJob(absl::string_view trainer) { return absl::StartsWith(trainer, kJobTrainerPrefix); }

absl::Status CheckNumbers(const TrainerSpec& spec) {
  if (spec.micro_batch < 0) {
    return InvalidField("micro_batch",
                        absl::StrCat(spec.micro_batch, " is out of range (expected at least 0)"));
  }
  if (spec.checkpoints.every_operations < 0) {
    return InvalidField(
        "checkpoints.every_operations",
        absl::StrCat(spec.checkpoints.every_operations, " is out of range (expected at least 0)"));
  }
  if (spec.journal_history.bytes < 0) {
    return InvalidField(
        "journal_history.bytes",
        absl::StrCat(spec.journal_history.bytes, " is out of range (expected at least 0)"));
  }
  if (spec.journal_history.kept() && spec.journal == JournalMode::kNone) {
    return InvalidField("journal_history", "set, but journal is JOURNAL_NONE (remove one of them)");
  }
  if (spec.checkpoints.keep < 0) {
    return InvalidField("checkpoints.keep", absl::StrCat(spec.checkpoints.keep,
                                                         " is out of range (expected at least 0)"));
  }
  return absl::OkStatus();
}

absl::Status CheckSpec(const TrainerSpec& spec) {
  BRAID_RETURN_IF_ERROR(CheckOptimizer(spec.optimizer));
  BRAID_RETURN_IF_ERROR(CheckClipping(spec.clipping));
  BRAID_RETURN_IF_ERROR(CheckGradScaler(spec.grad_scaler));
  return CheckNumbers(spec);
}

// Checks the settings that need a data directory.
absl::Status CheckUnstored(const TrainerSpec& spec) {
  constexpr absl::string_view kNeeds = "needs a server with --data_dir";
  if (spec.idle_timeout > absl::ZeroDuration()) {
    return InvalidField("idle_timeout_seconds", absl::StrCat(kNeeds, ", to keep the state"));
  }
  if (spec.checkpoints.every_operations > 0) {
    return InvalidField("checkpoints.every_operations", kNeeds);
  }
  if (spec.checkpoints.every > absl::ZeroDuration()) {
    return InvalidField("checkpoints.every_seconds", kNeeds);
  }
  if (spec.journal_history.kept()) {
    return InvalidField("journal_history", kNeeds);
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

absl::Status NoStore(const std::string& name) {
  return absl::FailedPreconditionError(absl::StrCat(
      "trainer '", name, "' has no checkpoints: the server was started without --data_dir"));
}

// Returns the run of a trainer's metrics. Jobs track those of their trainers.
std::shared_ptr<TrackedRun> OpenTracked(Tracking* tracking, const std::string& trainer) {
  return tracking == nullptr || OfJob(trainer) ? nullptr
                                               : tracking->Open(Tracking::TrainerFolder(trainer));
}

// Returns what the bits of a result depend on, besides its operation.
std::string DescribeProcess(const Placement& placement) {
  std::vector<std::string> devices;
  for (const PlacedStage& stage : placement.stages) {
    for (const Worker* worker : stage.replicas.workers()) {
      devices.push_back(
          absl::StrCat(worker->name(), " (", worker->device().threads(), " threads)"));
    }
  }
  return absl::StrCat("PyTorch ", kTorchVersion, " on ", absl::StrJoin(devices, ", "));
}

// Sink that collects the bytes in memory.
class StringSink final : public ByteSink {
 public:
  absl::Status Write(absl::string_view bytes) override {
    absl::StrAppend(&text, bytes);
    return absl::OkStatus();
  }
  std::string text;
};

}  // namespace

absl::Status Trainer::Check(TrainerSpec spec, const BaseModel& base, const TrainerUse& use) {
  BRAID_RETURN_IF_ERROR(CheckSpec(spec));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<const Objective> objective,
                         Objective::Create(&spec, base.config));
  BRAID_RETURN_IF_ERROR(objective->CheckTargets(use.targets, base.config));
  const auto check_evaluation = [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const Evaluation evaluation,
                           Evaluation::Create(use.metrics, use.top_k, objective));
    return evaluation.CheckTargets(use.targets, base.config);
  };
  BRAID_RETURN_IF_ERROR(PrefixField("evaluation.", check_evaluation()));
  BRAID_ASSIGN_OR_RETURN(const Placement placement, Place(base.replicas, &spec));
  BRAID_ASSIGN_OR_RETURN(const ParameterGroups groups,
                         DataParallel::GroupsOf(base.config, spec, placement));
  return Schedule::Create(spec.schedule, spec.optimizer, groups).status();
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(TrainerSpec spec, std::string id,
                                                         const BaseModel& base, TrainerFiles files,
                                                         const TrainerServices& services) {
  BRAID_RETURN_IF_ERROR(CheckSpec(spec));
  if (files.checkpoints == nullptr) {
    BRAID_RETURN_IF_ERROR(CheckUnstored(spec));
  }
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const Objective> objective,
                         Objective::Create(&spec, base.config));
  if (spec.base_version == 0) {
    spec.base_version = base.version;
  }
  const bool of_job = OfJob(spec.name);
  BRAID_ASSIGN_OR_RETURN(
      Placement placement,
      Place(base.replicas, &spec, of_job ? services.job_workers : services.training_workers));
  placement.overlap_reduction = services.overlap_reduction;
  std::vector<std::string> devices = DevicesOf(placement);
  std::string process = DescribeProcess(placement);
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<DataParallel> model,
                         DataParallel::Create(base.config, spec, objective, std::move(placement)));
  BRAID_ASSIGN_OR_RETURN(Schedule schedule,
                         Schedule::Create(spec.schedule, spec.optimizer, model->groups()));
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<HostModel> host_model, HostModel::CopyOf(base.replicas));
  const int64_t keep = spec.checkpoints.keep;
  std::unique_ptr<Trainer> trainer(new Trainer(
      std::move(spec), std::move(id), base.config, std::move(devices), std::move(objective),
      std::move(schedule), std::move(model), std::move(host_model), services));
  trainer->process_ = std::move(process);
  if (files.checkpoints != nullptr) {
    if (trainer->spec_.journal == JournalMode::kOperations && !of_job &&
        services.read_operation != nullptr) {
      const std::optional<CheckpointInfo> newest = files.checkpoints->newest();
      BRAID_ASSIGN_OR_RETURN(
          trainer->journal_,
          OperationJournal::Open(files.journal_directory, trainer->process_,
                                 newest ? newest->line : 0, &services.pools->journals,
                                 trainer->spec_.journal_history, services.read_operation));
    }
    if (trainer->journal_ != nullptr) {
      files.checkpoints->SkipLines(trainer->journal_->last_line());
    }
    const auto wait = [trainer = trainer.get()](int64_t sequence) {
      trainer->WaitForFiles(sequence);
    };
    const auto retain = [trainer = trainer.get()](CheckpointRetention* retention) {
      retention->all = *trainer->history_users_ > 0;
      if (trainer->journal_ != nullptr) {
        retention->history = trainer->journal_->history_start();
      }
    };
    trainer->checkpointer_ =
        std::make_unique<Checkpointer>(std::move(files.checkpoints), trainer->host_model_.get(),
                                       keep, wait, retain, &services.pools->checkpoints);
  }
  return trainer;
}

Trainer::Trainer(TrainerSpec spec, std::string id, ModelConfig config,
                 std::vector<std::string> devices, std::shared_ptr<const Objective> objective,
                 Schedule schedule, std::unique_ptr<DataParallel> model,
                 std::unique_ptr<const HostModel> host_model, const TrainerServices& services)
    : spec_(std::move(spec)),
      id_(std::move(id)),
      config_(std::move(config)),
      devices_(std::move(devices)),
      objective_(std::move(objective)),
      services_(services),
      host_model_(std::move(host_model)),
      model_metrics_(services_.metrics, spec_.model),
      metrics_(services_.metrics, spec_.name),
      tracked_(OpenTracked(services_.tracking, spec_.name)),
      schedule_(std::move(schedule)),
      model_(std::move(model)),
      queue_(&(OfJob(spec_.name) ? services_.pools->job_operations : services_.pools->operations)) {
  const absl::MutexLock lock(&mu_);
  UpdateInfo();
  RecordLearningRates(lrs_);
}

Trainer::~Trainer() {
  const absl::MutexLock lock(&mu_);
  deleted_ = true;
}

absl::Status Trainer::Enqueue(TaskQueue::Task task) {
  const absl::MutexLock lock(&mu_);
  if (waiting_ >= kMaxWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("trainer '", spec_.name, "' has ", waiting_,
                     " operations in its queue; send fewer at a time"));
  }
  ++waiting_;
  last_used_ = absl::Now();
  queue_.Post([this, task = std::move(task)]() mutable {
    task();
    const absl::MutexLock done(&mu_);
    --waiting_;
  });
  return absl::OkStatus();
}

template <typename Done, typename Work>
void Trainer::RunInQueue(Done done, Work work) {
  // The task may be destroyed without running; the callback must be called.
  auto shared = std::make_shared<Done>(std::move(done));
  absl::Status queued = Enqueue([this, work = std::move(work), shared]() mutable {
    absl::Status alive = CheckUsable();
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
  // The caller has the result before a checkpoint contains the operation: a job records it.
  const auto began = std::make_shared<bool>(false);
  auto report = [this, began,
                 done = std::move(done)](absl::StatusOr<OperationResult> result) mutable {
    const bool applied = result.ok();
    if (applied || *began) {
      Reply(std::move(result), std::move(done));
    } else {
      done(std::move(result));  // at once, so that a stream ends before its next operation
    }
    if (applied) {
      StartCheckpointIfDue(absl::Now());
    }
  };
  RunInQueue(std::move(report), [this, began, operation = std::move(operation)]() mutable {
    return Apply(std::move(operation), began.get());
  });
}

void Trainer::GetState(StateDone done) {
  RunInQueue(std::move(done), [this] { return model_->State(); });
}

void Trainer::Export(ExportFormat format, ExportDone done) {
  RunInQueue(std::move(done), [this, format]() -> absl::StatusOr<std::string> {
    BRAID_ASSIGN_OR_RETURN(const std::vector<StateTensor> state,
                           model_->State(format == ExportFormat::kTrainableSafetensors));
    return ExportNow(format, state);
  });
}

absl::Status Trainer::CheckNotDeleted() const {
  const absl::MutexLock lock(&mu_);
  if (deleted_) {
    return absl::NotFoundError(absl::StrCat("trainer '", spec_.name, "' has been deleted"));
  }
  return absl::OkStatus();
}

absl::Status Trainer::CheckUsable() const {
  BRAID_RETURN_IF_ERROR(CheckNotDeleted());
  const absl::MutexLock lock(&mu_);
  return poisoned_;
}

template <typename Work>
auto Trainer::InTurn(Work work) {
  std::optional<JobGate::Turn> turn;
  if (services_.job_gate != nullptr) {
    turn.emplace(*services_.job_gate, devices_, OfJob(spec_.name));
  }
  return work();
}

absl::StatusOr<OperationResult> Trainer::Apply(Operation operation, bool* began) {
  const absl::Time start = absl::Now();
  if (operation.dropped && operation.dropped()) {
    return absl::CancelledError("an operation before this one has failed");
  }
  if (!operation.trainer_id.empty() && operation.trainer_id != id_) {
    return absl::AbortedError(absl::StrCat(
        "sender.trainer_id: trainer '", spec_.name,
        "' is a new trainer, the one that this client knows was deleted; attach again"));
  }
  BRAID_ASSIGN_OR_RETURN(
      std::optional<OperationResult> recorded,
      sequence_.Admit(operation.sequence, operation.fingerprint, operation.last_operator));
  if (recorded) {
    metrics_.CountReplay();
    SetDurability(operation, &*recorded);
    const absl::MutexLock lock(&mu_);
    recorded->durable_sequence = durable_;
    return *std::move(recorded);
  }
  if (journal_ != nullptr) {
    BRAID_RETURN_IF_ERROR(RetryJournal());
    journal_->Begin(operation, sequence_.history());
    *began = true;
  }
  absl::StatusOr<OperationResult> result = InTurn([&] { return Execute(operation); });
  if (result.ok()) {
    result->phases.insert(result->phases.begin(), {"queue", start - operation.received});
    Complete(operation, &*result);
    time_since_checkpoint_ += absl::Now() - start;
  }
  if (journal_ != nullptr) {
    journal_->End(operation, result);
  }
  return result;
}

void Trainer::Complete(const Operation& operation, OperationResult* result) {
  result->applied_sequence = operation.sequence;
  {
    const absl::MutexLock lock(&mu_);
    applied_ = operation.sequence;
    last_operator_ = operation.client_id;
    UpdateInfo();
    result->step = step_;
    result->durable_sequence = durable_;
  }
  if (!model_->keeps_graph()) {
    before_forward_.reset();
  } else if (operation.kind == OperationKind::kForward) {
    before_forward_ = sequence_;
  }
  sequence_.Record(operation.sequence, operation.fingerprint, *result, operation.client_id);
  ++operations_since_checkpoint_;
}

absl::Status Trainer::RetryJournal() {
  if (!journal_failed_) {
    return absl::OkStatus();
  }
  const absl::Status status = WaitFor<absl::Status>([&](auto done) { journal_->Sync(done); });
  journal_failed_ = !status.ok();
  if (!status.ok()) {
    metrics_.RecordJournalWait(/*written=*/false, absl::ZeroDuration());
  }
  return JournalError(status);
}

absl::Status Trainer::JournalError(const absl::Status& status) const {
  // UNAVAILABLE tells clients that the operation may have been applied.
  return status.ok() ? status
                     : absl::Status(absl::StatusCode::kUnavailable,
                                    absl::StrCat("trainer '", spec_.name,
                                                 "' has stopped because its journal cannot be "
                                                 "written: ",
                                                 status.message(),
                                                 " (send the operation again when the disk has "
                                                 "space)"));
}

void Trainer::Reply(absl::StatusOr<OperationResult> result, OperationDone done) {
  if (journal_ == nullptr) {
    done(std::move(result));
    return;
  }
  journal_->Sync([this, applied = absl::Now(), result = std::move(result),
                  done = std::move(done)](const absl::Status& synced) mutable {
    journal_failed_ = !synced.ok();
    metrics_.RecordJournalWait(synced.ok(), absl::Now() - applied);
    const int64_t bytes = journal_->bytes();
    metrics_.CountJournal(bytes - std::exchange(journal_bytes_counted_, bytes), journal_->size());
    if (!synced.ok()) {
      done(JournalError(synced));
      return;
    }
    if (result.ok()) {
      const absl::MutexLock lock(&mu_);
      durable_ = std::max(durable_, result->applied_sequence);
      // Not durable_: a checkpoint may contain later operations that have no reply yet.
      result->durable_sequence = result->applied_sequence;
    }
    done(std::move(result));
  });
}

absl::Status Trainer::ReplayJournal(int64_t line) {
  const int64_t restored = sequence_.applied();
  bool warned = false;
  std::vector<OperationResult> unrecorded;
  BRAID_RETURN_IF_ERROR(journal_->Recover(line, restored, [&](JournaledOperation journaled) {
    if (journaled.description != journal_->description() && !std::exchange(warned, true)) {
      Log(LogModule::kTraining)
          .warn(
              "trainer '{}': the operations of the journal were applied with {}, and are applied "
              "again with {}: results may differ in the last bits",
              spec_.name, journaled.description, journal_->description());
    }
    const bool recorded = journaled.result.has_value();
    BRAID_ASSIGN_OR_RETURN(OperationResult result, Replay(std::move(journaled)));
    if (!recorded) {
      result.outputs.clear();
      unrecorded.push_back(std::move(result));
    }
    return absl::OkStatus();
  }));
  for (const OperationResult& result : unrecorded) {
    journal_->RecordResult(result.applied_sequence, result);
  }
  if (sequence_.applied() == restored) {
    return absl::OkStatus();
  }
  Log(LogModule::kTraining)
      .info("trainer '{}': operations {} to {} applied again from the journal", spec_.name,
            restored + 1, sequence_.applied());
  const absl::MutexLock lock(&mu_);
  durable_ = applied_;
  return absl::OkStatus();
}

absl::StatusOr<OperationResult> Trainer::Replay(JournaledOperation journaled) {
  Operation& operation = journaled.operation;
  if (journaled.history != sequence_.history()) {
    return absl::DataLossError("it follows other operations than those that were applied");
  }
  const absl::Time start = absl::Now();
  absl::StatusOr<OperationResult> result;
  if (operation.kind == OperationKind::kPublish) {
    result.emplace();
    result->model = journaled.result->model;
    result->version = journaled.result->version;
    if (journal_ != nullptr && services_.publisher->WasLost(result->model, result->version)) {
      // With the same origin, it gets the same number.
      operation.wait_durable = false;
      result = InTurn([&] { return RunPublish(operation); });
    }
    model_->DropKept();
  } else {
    result = InTurn([&] { return Execute(operation); });
  }
  BRAID_RETURN_IF_ERROR(result.status());
  Complete(operation, &*result);
  time_since_checkpoint_ += absl::Now() - start;
  return result;
}

absl::Status Trainer::Start(StoredCheckpoint read) {
  return RestoreNow(std::move(read), /*resumes=*/true).status();
}

absl::StatusOr<TrainerCheckpoint> Trainer::Checkpoint() {
  return MakeCheckpoint(/*before_forward=*/false);
}

absl::Status Trainer::WriteTo(CheckpointStore& store) {
  BRAID_ASSIGN_OR_RETURN(const TrainerCheckpoint checkpoint, Checkpoint());
  BRAID_RETURN_IF_ERROR(store.Share(BaseFiles(host_model_->Files())));
  return store
      .Write(checkpoint.progress.step, checkpoint.progress.sequence, WriteState(checkpoint),
             CheckpointFiles(checkpoint))
      .status();
}

void Trainer::UpdateInfo() {
  accumulated_ = model_->accumulated();
  memory_ = model_->memory();
  const auto next = schedule_.Next({});
  const std::vector<GroupValues> values =
      next.ok() ? *next : std::vector<GroupValues>(model_->groups().size());
  lr_ = values.front().lr;
  lrs_ = LearningRates(values);
}

std::vector<GroupLearningRate> Trainer::LearningRates(
    const std::vector<GroupValues>& values) const {
  const ParameterGroups& groups = model_->groups();
  std::vector<GroupLearningRate> rates;
  for (const size_t g : groups.updated()) {
    rates.push_back({g == 0 ? "" : groups.specs()[g - 1].pattern, values[g].lr});
  }
  return rates;
}

void Trainer::RecordLearningRates(const std::vector<GroupLearningRate>& rates) {
  for (const GroupLearningRate& rate : rates) {
    metrics_.SetLearningRate(rate.group, rate.lr);
  }
}

absl::Status Trainer::MoveBatches(Operation& operation) const {
  if (operation.layout == BatchLayout::kRowsFirst) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(BatchToFront(config_.inputs, &operation.inputs).status());
  BRAID_RETURN_IF_ERROR(BatchToFront(config_.outputs, &operation.output_gradients).status());
  if (spec_.loss_mode == LossMode::kModel) {
    return BatchToFront(config_.inputs, &operation.targets).status();
  }
  for (HostTensor& target : operation.targets) {
    const size_t dim = objective_->TargetBatchDim(target.name);
    BRAID_ASSIGN_OR_RETURN(target, BatchToFront(std::move(target), dim));
  }
  return absl::OkStatus();
}

absl::StatusOr<OperationResult> Trainer::RunForward(const Batch& batch,
                                                    const Operation& operation) {
  BRAID_ASSIGN_OR_RETURN(OperationResult result, model_->Forward(batch, operation.keep_graph));
  for (size_t o = 0; operation.layout == BatchLayout::kClient && o < result.outputs.size(); ++o) {
    HostTensor& output = result.outputs[o];
    BRAID_ASSIGN_OR_RETURN(output, BatchFromFront(std::move(output), config_.outputs[o].batch_dim));
  }
  return result;
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
    return InvalidField("targets", "given, but the client computes the loss (remove them)");
  }
  batch.mode = operation.kind == OperationKind::kForward ? operation.mode : Mode::kTrain;
  batch.seed = MixSeed(spec_.seed, static_cast<uint64_t>(operation.sequence));
  batch.report_split = operation.report_split;
  return batch;
}

absl::Status Trainer::CheckOperation(const Operation& operation) const {
  const bool trains =
      operation.kind == OperationKind::kStep || operation.kind == OperationKind::kForwardBackward;
  if (operation.kind == OperationKind::kOptimStep && model_->accumulated() == 0 &&
      model_->skipped_batches() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "trainer '", spec_.name, "' has no gradients to update from; call ForwardBackward first"));
  }
  if (trains && spec_.loss_mode == LossMode::kClient) {
    return absl::FailedPreconditionError(
        absl::StrCat("the client computes the loss of trainer '", spec_.name,
                     "': call Forward with keep_graph, then Backward, then OptimStep"));
  }
  if (operation.kind == OperationKind::kForward && operation.keep_graph &&
      operation.mode == Mode::kEval) {
    return InvalidField("keep_graph", "requires MODE_TRAIN");
  }
  return absl::OkStatus();
}

absl::Status Trainer::Poison(absl::string_view what, const absl::Status& failure) {
  const absl::MutexLock lock(&mu_);
  poisoned_ = absl::DataLossError(absl::StrCat("trainer '", spec_.name, "' is poisoned: ", what,
                                               " was interrupted: ", failure.message()));
  return poisoned_;
}

absl::StatusOr<OperationResult> Trainer::Execute(Operation& operation) {
  if (operation.kind == OperationKind::kPublish) {
    return RunPublish(operation);
  }
  const absl::Time start = absl::Now();
  // Checks the update before the backward pass, so that an error changes nothing.
  std::vector<GroupValues> values;
  const bool updates =
      operation.kind == OperationKind::kStep || operation.kind == OperationKind::kOptimStep;
  if (updates) {
    BRAID_ASSIGN_OR_RETURN(values, schedule_.Next(operation.hyper_parameters));
  }
  BRAID_RETURN_IF_ERROR(CheckOperation(operation));
  BRAID_RETURN_IF_ERROR(MoveBatches(operation));
  int64_t rows = 0;
  const auto run = [&]() -> absl::StatusOr<OperationResult> {
    if (operation.kind == OperationKind::kOptimStep) {
      return model_->Update(values);
    }
    if (operation.kind == OperationKind::kBackward) {
      return model_->Backward(operation.output_gradients);
    }
    BRAID_ASSIGN_OR_RETURN(const Batch batch, MakeBatch(operation));
    rows = batch.rows;
    return operation.kind == OperationKind::kForward
               ? RunForward(batch, operation)
               : model_->RunTrainStep(batch, updates ? &values : nullptr);
  };
  absl::StatusOr<OperationResult> result = Profiled(run);
  if (!result.ok()) {
    return model_->poisoned() ? Poison("an update", result.status()) : result.status();
  }
  if (result->updated) {
    result->lr = values.front().lr;
    result->lrs = LearningRates(values);
  }
  Record(operation, rows, start, *result);
  return result;
}

absl::StatusOr<OperationResult> Trainer::Profiled(
    absl::FunctionRef<absl::StatusOr<OperationResult>()> run) {
  if (services_.profiler == nullptr) {
    return run();
  }
  services_.profiler->Begin();
  absl::StatusOr<OperationResult> result = run();
  services_.profiler->End();
  return result;
}

void Trainer::Record(const Operation& operation, int64_t rows, absl::Time start,
                     const OperationResult& result) {
  if (result.loss) {
    metrics_.RecordLoss(*result.loss, rows);
  }
  const bool trains =
      operation.kind == OperationKind::kStep || operation.kind == OperationKind::kForwardBackward;
  if (trains && result.loss && !result.skipped) {
    loss_sum_ += *result.loss;
    ++losses_;
  }
  const std::optional<double> loss =
      losses_ > 0 ? std::optional<double>(loss_sum_ / static_cast<double>(losses_)) : std::nullopt;
  if (result.updated) {
    schedule_.Advance(loss, operation.hyper_parameters.metric);
    RecordLearningRates(result.lrs);
  } else if (operation.hyper_parameters.metric) {
    schedule_.RecordMetric(*operation.hyper_parameters.metric);
  }
  if (model_->accumulated() == 0) {
    // Cleared with the gradients, whether the update was applied or skipped.
    loss_sum_ = 0;
    losses_ = 0;
  }
  const bool evaluates = operation.kind == OperationKind::kForward && operation.mode == Mode::kEval;
  if (!evaluates) {
    step_time_ += absl::Now() - start;
    step_rows_ += rows;
  }
  RecordMetrics(result);
  int64_t step = 0;
  {
    const absl::MutexLock lock(&mu_);
    step_ += result.updated ? 1 : 0;
    skipped_ += result.skipped ? 1 : 0;
    step = step_;
  }
  if (result.updated) {
    const absl::Duration time = std::exchange(step_time_, absl::ZeroDuration());
    metrics_.CountStep(time);
    TrackStep(step, result, loss, std::exchange(step_rows_, 0), time);
  }
}

void Trainer::RecordMetrics(const OperationResult& result) {
  for (const PhaseTime& phase : result.phases) {
    metrics_.AddPhase(phase.name, phase.time);
  }
  if (result.imbalance) {
    metrics_.RecordImbalance(*result.imbalance);
  }
  if (result.gradient_norm) {
    metrics_.SetGradientNorm(*result.gradient_norm);
  }
  if (result.skipped) {
    metrics_.CountSkip();
  }
}

void Trainer::TrackStep(int64_t step, const OperationResult& result, std::optional<double> loss,
                        int64_t rows, absl::Duration time) {
  if (tracked_ == nullptr) {
    return;
  }
  std::vector<TrackedValue> values;
  const auto add = [&values](const char* name, const std::optional<double>& value) {
    if (value.has_value()) {
      values.push_back({name, *value});
    }
  };
  add("loss", loss);
  add("lr", result.lr);
  add("gradient_norm", result.gradient_norm);
  if (rows > 0 && time > absl::ZeroDuration()) {
    add("rows_per_second", static_cast<double>(rows) / absl::ToDoubleSeconds(time));
  }
  tracked_->Add(step, std::move(values));
}

void Trainer::TrackEvaluation(int64_t step, const EvaluationResult& result) {
  if (tracked_ == nullptr) {
    return;
  }
  std::vector<TrackedValue> values;
  if (result.loss.has_value()) {
    values.push_back({"evaluation/loss", *result.loss});
  }
  for (const auto& [name, value] : result.metrics) {
    values.push_back({absl::StrCat("evaluation/", name), value});
  }
  tracked_->Add(step, std::move(values));
}

absl::StatusOr<std::shared_ptr<Evaluation>> Trainer::StartEvaluation(
    const std::vector<std::string>& metrics, int64_t k) const {
  BRAID_ASSIGN_OR_RETURN(Evaluation evaluation, Evaluation::Create(metrics, k, objective_));
  return std::make_shared<Evaluation>(std::move(evaluation));
}

void Trainer::Evaluate(std::shared_ptr<Evaluation> evaluation, BatchLayout layout,
                       std::vector<HostTensor> inputs, std::vector<HostTensor> targets,
                       EvaluateDone done) {
  Operation operation;
  operation.layout = layout;
  operation.kind = OperationKind::kForward;
  operation.mode = Mode::kEval;
  operation.inputs = std::move(inputs);
  operation.targets = std::move(targets);
  RunInQueue(
      std::move(done),
      [this, evaluation = std::move(evaluation),
       operation = std::move(operation)]() mutable -> absl::StatusOr<int64_t> {
        BRAID_RETURN_IF_ERROR(MoveBatches(operation));
        std::vector<HostTensor> measured;
        if (spec_.loss_mode != LossMode::kModel) {
          measured = std::exchange(operation.targets, {});
        }
        BRAID_ASSIGN_OR_RETURN(Batch batch, MakeBatch(operation));
        BRAID_ASSIGN_OR_RETURN(batch.targets, objective_->PickTargets(measured, batch.rows));
        BRAID_RETURN_IF_ERROR(InTurn([&] { return model_->Evaluate(batch, evaluation.get()); }));
        const absl::MutexLock lock(&mu_);
        return step_;
      });
}

TrainerInfo Trainer::info() const {
  const absl::MutexLock lock(&mu_);
  return {spec_, devices_, step_, applied_,       durable_,         accumulated_, skipped_,
          lr_,   memory_,  id_,   last_operator_, NotesOn(config_), lrs_};
}

void Trainer::GetSettled(InfoDone done) {
  auto shared = std::make_shared<InfoDone>(std::move(done));
  // Also for a poisoned trainer, whose client needs the sequence number.
  absl::Status queued = Enqueue([this, shared] {
    absl::Status there = CheckNotDeleted();
    (*shared)(there.ok() ? absl::StatusOr<TrainerInfo>(info()) : std::move(there));
  });
  if (!queued.ok()) {
    (*shared)(std::move(queued));
  }
}

TrainerState Trainer::state() const {
  const absl::MutexLock lock(&mu_);
  return {spec_.name, spec_.model, !poisoned_.ok(), /*on_disk=*/false,
          step_,      lr_,         devices_,        memory_};
}

bool Trainer::RetireAt(int64_t sequence) {
  const absl::MutexLock lock(&mu_);
  deleted_ = deleted_ || (waiting_ == 0 && applied_ == sequence);
  return deleted_;
}

bool Trainer::idle() const {
  const absl::MutexLock lock(&mu_);
  return waiting_ == 0 && !deleted_ && poisoned_.ok() && !model_->keeps_graph();
}

absl::Time Trainer::last_used() const {
  const absl::MutexLock lock(&mu_);
  return waiting_ > 0 ? absl::Now() : last_used_;
}

absl::StatusOr<ReplicaSet> Trainer::MakeReplicas(const std::vector<StateEntry>& on_host) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<const BatchQueue> served,
                         services_.models->FindReplicas(spec_.model, 0));
  const std::vector<Worker*>& workers = served->replicas().workers();
  std::vector<std::unique_ptr<Replica>> replicas(workers.size());
  for (size_t r = 0; r < workers.size(); ++r) {
    const c10::Device device = workers[r]->torch_device();
    std::vector<StateEntry> state = on_host;
    if (!device.is_cpu()) {
      BRAID_ASSIGN_OR_RETURN(state, model_->Share(device));
    }
    BRAID_RETURN_IF_ERROR(RunOnEach({workers[r]}, Phase::kLoad, [&](size_t) -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(replicas[r], host_model_->With(state, device));
      return absl::OkStatus();
    }));
  }
  return ReplicaSet(workers, std::move(replicas));
}

absl::StatusOr<std::string> Trainer::ExportNow(ExportFormat format,
                                               const std::vector<StateTensor>& state) {
  StringSink sink;
  if (format == ExportFormat::kSafetensors || format == ExportFormat::kTrainableSafetensors) {
    std::vector<HostTensor> tensors;
    for (const StateTensor& entry : state) {
      tensors.push_back(entry.tensor);
    }
    BRAID_RETURN_IF_ERROR(WriteSafetensors(&sink, tensors));
  } else {
    BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<Replica> whole, host_model_->With(state));
    BRAID_RETURN_IF_ERROR(WriteFile(*whole, format, &sink));
  }
  return std::move(sink.text);
}

absl::Status Trainer::WriteFile(const Replica& whole, ExportFormat format, ByteSink* sink) const {
  const std::vector<NewFile> files = whole.Files();
  const absl::string_view wanted =
      format == ExportFormat::kTorchScript ? kTorchScriptFile : kPackageFile;
  if (files.front().name != wanted) {
    return InvalidField("format",
                        absl::StrCat("model '", spec_.model, "' is ",
                                     files.front().name == kPackageFile
                                         ? "an exported pair (expected PACKAGE or SAFETENSORS)"
                                         : "a TorchScript module (expected TORCHSCRIPT or "
                                           "SAFETENSORS)"));
  }
  return files.front().write(sink);
}

absl::StatusOr<OperationResult> Trainer::RunPublish(const Operation& operation) {
  VersionOrigin origin;
  origin.trainer = spec_.name;
  origin.trainer_id = id_;
  origin.sequence = operation.sequence;
  origin.last_operator = sequence_.last_operator();
  origin.history = sequence_.history();
  origin.created = absl::Now();
  {
    const absl::MutexLock lock(&mu_);
    origin.step = step_;
    // The operation itself changes no weights.
    if (checkpoint_.sequence == operation.sequence - 1) {
      origin.checkpoint = checkpoint_.name;
    }
  }
  OperationResult result;
  ModelConfig config = config_;
  if (!operation.target_model.empty()) {
    config.name = operation.target_model;
  }
  result.model = config.name;
  BRAID_ASSIGN_OR_RETURN(const std::vector<StateEntry> state, model_->Share(c10::kCPU));
  BRAID_ASSIGN_OR_RETURN(ReplicaSet replicas, MakeReplicas(state));
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<Replica> whole, host_model_->With(state, c10::kCPU));
  BRAID_ASSIGN_OR_RETURN(result.version,
                         services_.publisher->Publish(config, std::move(replicas), origin,
                                                      whole->Files(), operation.wait_durable));
  SetDurability(operation, &result);
  model_->DropKept();
  return result;
}

void Trainer::SetDurability(const Operation& operation, OperationResult* result) const {
  if (operation.kind != OperationKind::kPublish) {
    return;
  }
  result->durability = operation.wait_durable
                           ? services_.publisher->WaitForDurability(result->model, result->version)
                           : services_.publisher->DurabilityOf(result->model, result->version);
}

absl::StatusOr<TrainerCheckpoint> Trainer::MakeCheckpoint(bool before_forward) {
  const Sequence& sequence = before_forward ? *before_forward_ : sequence_;
  TrainerCheckpoint checkpoint;
  BRAID_ASSIGN_OR_RETURN(checkpoint.tensors,
                         before_forward ? model_->SnapshotBeforeForward() : model_->Snapshot());
  TrainerProgress& progress = checkpoint.progress;
  progress.model = spec_.model;
  progress.optimizer = std::string(OptimizerName(spec_.optimizer));
  progress.sequence = sequence.applied();
  progress.fingerprint = sequence.fingerprint();
  progress.reply = sequence.result();
  progress.last_operator = sequence.last_operator();
  progress.history = sequence.history();
  progress.schedule = schedule_.state();
  progress.loss_sum = loss_sum_;
  progress.losses = losses_;
  progress.keeps_graph = model_->keeps_graph() && !before_forward;
  const absl::MutexLock lock(&mu_);
  progress.step = step_;
  progress.skipped = skipped_;
  return checkpoint;
}

void Trainer::StartCheckpoint(bool before_forward, bool automatic, SaveDone done) {
  const absl::Time start = absl::Now();
  absl::StatusOr<TrainerCheckpoint> checkpoint = MakeCheckpoint(before_forward);
  if (journal_ != nullptr) {
    journal_->BeginCheckpoint();
    journal_bytes_at_checkpoint_ = journal_->bytes();
  }
  time_since_checkpoint_ = absl::ZeroDuration();
  metrics_.RecordCheckpointPause(absl::Now() - start);
  operations_since_checkpoint_ = 0;
  last_checkpoint_ = start;
  if (!checkpoint.ok()) {
    metrics_.RecordCheckpoint(/*written=*/false, absl::Now() - start);
    done(checkpoint.status());
    return;
  }
  checkpoint->automatic = automatic;
  const bool whole = !checkpoint->progress.keeps_graph;
  checkpointer_->Write(*std::move(checkpoint), [this, start, whole, done = std::move(done)](
                                                   absl::StatusOr<CheckpointInfo> info) mutable {
    if (info.ok()) {
      const absl::MutexLock lock(&mu_);
      durable_ = std::max(durable_, info->sequence);
      checkpoint_ = *info;
      if (journal_ != nullptr && whole && *history_users_ == 0) {
        journal_->EndCheckpoint(info->sequence);
      }
      checkpoint_time_ = absl::Now() - start;
      metrics_.SetLastCheckpoint(info->created);
    } else {
      Log(LogModule::kTraining)
          .error("trainer '{}': a checkpoint was not written: {}", spec_.name,
                 std::string(info.status().message()));
    }
    metrics_.RecordCheckpoint(info.ok(), absl::Now() - start);
    done(std::move(info));
    // The next checkpoint may be due already, and no operation may follow for a long time.
    PostCheckpointCheck(absl::Now());
  });
}

void Trainer::SetBeforeCheckpoint(std::function<void()> call) {
  const absl::MutexLock lock(&before_mu_);
  before_checkpoint_ = std::move(call);
}

void Trainer::WaitForFiles(int64_t sequence) {
  services_.publisher->WaitForTrainer(id_, sequence);
  if (tracked_ != nullptr) {
    tracked_->Flush();
  }
  const absl::MutexLock lock(&before_mu_);
  if (before_checkpoint_ != nullptr) {
    before_checkpoint_();
  }
}

void Trainer::StartCheckpointIfDue(absl::Time now) {
  const CheckpointPolicy& policy = spec_.checkpoints;
  if (checkpointer_ == nullptr || operations_since_checkpoint_ == 0) {
    return;
  }
  const bool by_count =
      policy.every_operations > 0 && operations_since_checkpoint_ >= policy.every_operations;
  const bool by_time =
      policy.every > absl::ZeroDuration() && now - last_checkpoint_ >= policy.every;
  const bool by_journal = journal_ != nullptr && JournalIsLong();
  // One at a time, so that a slow disk gets fewer checkpoints. Not between a Forward and its
  // Backward, which could not be retried after a restart because graphs cannot be checkpointed.
  if ((by_count || by_time || by_journal) && checkpointer_->waiting() == 0 &&
      !model_->keeps_graph()) {
    StartCheckpoint(/*before_forward=*/false, /*automatic=*/!by_count && !by_time,
                    [](const absl::StatusOr<CheckpointInfo>&) {});
  }
}

bool Trainer::JournalIsLong() const {
  absl::Duration most_time = kMaxReplay;
  int64_t most_bytes = kMaxJournal;
  {
    const absl::MutexLock lock(&mu_);
    most_time = std::max(most_time, kReplayPerCheckpointTime * checkpoint_time_);
    most_bytes = std::max(most_bytes, checkpoint_.bytes);
  }
  return time_since_checkpoint_ >= most_time ||
         journal_->bytes() - journal_bytes_at_checkpoint_ >= most_bytes;
}

void Trainer::Tick(absl::Time now) {
  if (checkpointer_ != nullptr && spec_.checkpoints.every > absl::ZeroDuration()) {
    PostCheckpointCheck(now);
  }
}

void Trainer::PostCheckpointCheck(absl::Time now) {
  const absl::MutexLock lock(&mu_);
  // The destructor ends the trainer's queue before the checkpointer's.
  if (deleted_) {
    return;
  }
  if (check_at_.has_value()) {
    check_at_ = std::max(*check_at_, now);  // the posted check uses it
    return;
  }
  check_at_ = now;
  queue_.Post([this] {
    absl::Time at;
    {
      const absl::MutexLock begun(&mu_);
      at = *std::exchange(check_at_, std::nullopt);
    }
    if (CheckUsable().ok()) {
      StartCheckpointIfDue(at);
    }
  });
}

void Trainer::SaveCheckpoint(SaveDone done) { Save(/*last=*/false, std::move(done)); }

void Trainer::SaveLast(SaveDone done) { Save(/*last=*/true, std::move(done)); }

bool Trainer::awaits_backward() const {
  const CheckpointPolicy& policy = spec_.checkpoints;
  const bool client_sends_again =
      policy.every_operations > 0 || policy.every > absl::ZeroDuration();
  return (client_sends_again || journal_ != nullptr) && model_->keeps_graph() &&
         before_forward_.has_value();
}

void Trainer::Save(bool last, SaveDone done) {
  if (checkpointer_ == nullptr) {
    done(NoStore(spec_.name));
    return;
  }
  auto shared = std::make_shared<SaveDone>(std::move(done));
  const absl::Status queued = Enqueue([this, last, shared] {
    const bool before_forward = last && awaits_backward();
    absl::Status usable = CheckNotDeleted();
    if (last && usable.ok()) {
      if (const auto written =
              WrittenAt((before_forward ? *before_forward_ : sequence_).applied())) {
        (*shared)(*written);
        return;
      }
    }
    usable.Update(CheckUsable());
    if (!usable.ok()) {
      (*shared)(std::move(usable));
      return;
    }
    StartCheckpoint(before_forward, /*automatic=*/last,
                    [shared](absl::StatusOr<CheckpointInfo> info) { (*shared)(std::move(info)); });
  });
  if (!queued.ok()) {
    (*shared)(queued);
  }
}

std::optional<CheckpointInfo> Trainer::WrittenAt(int64_t sequence) const {
  const absl::MutexLock lock(&mu_);
  return !checkpoint_.name.empty() && checkpoint_.sequence == sequence ? std::optional(checkpoint_)
                                                                       : std::nullopt;
}

absl::StatusOr<std::vector<CheckpointInfo>> Trainer::ListCheckpoints() const {
  if (checkpointer_ == nullptr) {
    return NoStore(spec_.name);
  }
  return checkpointer_->List();
}

absl::Status Trainer::KeepCheckpoint(std::string name) {
  if (checkpointer_ == nullptr) {
    return NoStore(spec_.name);
  }
  checkpointer_->Keep(std::move(name));
  return absl::OkStatus();
}

std::shared_ptr<void> Trainer::UseHistory() const {
  ++*history_users_;
  return {nullptr, [users = history_users_](void*) { --*users; }};
}

absl::Status Trainer::UseCheckpoints(absl::FunctionRef<absl::Status(CheckpointStore&)> use) {
  return checkpointer_ == nullptr ? NoStore(spec_.name) : checkpointer_->Use(use);
}

void Trainer::RestoreCheckpoint(std::string name, SaveDone done) {
  Restore(
      [this, name = std::move(name)]() -> absl::StatusOr<CheckpointInfo> {
        BRAID_ASSIGN_OR_RETURN(StoredCheckpoint read, checkpointer_->Read(name));
        return RestoreNow(std::move(read), /*resumes=*/false);
      },
      std::move(done));
}

void Trainer::RestoreState(TrainerCheckpoint state, SaveDone done) {
  Restore(
      [this, state = std::move(state)]() mutable {
        return RestoreNow({{}, std::move(state), {}}, /*resumes=*/false);
      },
      std::move(done));
}

void Trainer::Resume(StoredCheckpoint read, SaveDone done) {
  Restore(
      [this, read = std::move(read)]() mutable -> absl::StatusOr<CheckpointInfo> {
        BRAID_ASSIGN_OR_RETURN(CheckpointInfo info, RestoreNow(std::move(read), /*resumes=*/true));
        if (journal_ != nullptr) {
          BRAID_RETURN_IF_ERROR(ReplayJournal(info.line));
          if (time_since_checkpoint_ >= kLongReplay && !model_->keeps_graph()) {
            StartCheckpoint(/*before_forward=*/false, /*automatic=*/true,
                            [](const absl::StatusOr<CheckpointInfo>&) {});
          }
        }
        return info;
      },
      std::move(done));
}

template <typename Work>
void Trainer::Restore(Work work, SaveDone done) {
  if (checkpointer_ == nullptr) {
    done(NoStore(spec_.name));
    return;
  }
  auto shared = std::make_shared<SaveDone>(std::move(done));
  // Also for a poisoned trainer, which only a restore repairs.
  const absl::Status queued = Enqueue([this, shared, work = std::move(work)]() mutable {
    absl::Status there = CheckNotDeleted();
    (*shared)(there.ok() ? work() : std::move(there));
  });
  if (!queued.ok()) {
    (*shared)(queued);
  }
}

absl::StatusOr<CheckpointInfo> Trainer::RestoreNow(StoredCheckpoint read, bool resumes) {
  TrainerProgress& progress = read.contents.progress;
  const auto other = [&](const char* what, const std::string& theirs, absl::string_view ours) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint '", read.info.name, "' is of ",
                                                      what, " '", theirs, "', the trainer of '",
                                                      ours, "'"));
  };
  if (progress.model != spec_.model) {
    return other("model", progress.model, spec_.model);
  }
  if (progress.optimizer != OptimizerName(spec_.optimizer)) {
    return other("optimizer", progress.optimizer, OptimizerName(spec_.optimizer));
  }
  Schedule schedule = schedule_;
  BRAID_RETURN_IF_ERROR(schedule.Load(progress.schedule));
  BRAID_RETURN_IF_ERROR(model_->CheckSnapshot(read.contents.tensors));
  if (!resumes) {
    progress.last_operator = RandomId();
    // Written before anything changes, because the disk may be full.
    BRAID_ASSIGN_OR_RETURN(
        read.info, read.info.name.empty()
                       ? checkpointer_->WriteRestored(read.contents)
                       : checkpointer_->MakeNewest(read.info.name, WriteState(read.contents)));
  }
  if (journal_ != nullptr && !resumes) {
    // Replies of earlier operations set durable_.
    WaitFor<absl::Status>([&](auto wait) { journal_->Sync(wait); }).IgnoreError();  // undone below
    journal_->Restart(read.info.line, progress.sequence);
    journal_failed_ = false;
  }
  if (checkpointer_ != nullptr && !progress.keeps_graph) {
    checkpointer_->SetWhole(read.info.name);
  }
  if (const absl::Status restored = model_->Restore(read.contents.tensors); !restored.ok()) {
    return Poison("a restore", restored);
  }
  schedule_ = std::move(schedule);
  loss_sum_ = progress.loss_sum;
  losses_ = progress.losses;
  step_time_ = absl::ZeroDuration();
  step_rows_ = 0;
  operations_since_checkpoint_ = 0;
  time_since_checkpoint_ = absl::ZeroDuration();
  last_checkpoint_ = absl::Now();
  before_forward_.reset();
  sequence_ = Sequence();
  sequence_.Restore(progress.sequence, progress.fingerprint, progress.reply, progress.last_operator,
                    progress.history);
  const absl::MutexLock lock(&mu_);
  poisoned_ = absl::OkStatus();
  step_ = progress.step;
  skipped_ = progress.skipped;
  applied_ = progress.sequence;
  last_operator_ = progress.last_operator;
  durable_ = progress.sequence;
  checkpoint_ = read.info;
  UpdateInfo();
  RecordLearningRates(lrs_);
  metrics_.SetLastCheckpoint(read.info.created);
  if (tracked_ != nullptr) {
    tracked_->Restart(step_);
  }
  return read.info;
}

}  // namespace braid
