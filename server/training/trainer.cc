#include "server/training/trainer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/models/input_check.h"

namespace braid {
namespace {

// A client pipelines a few operations; more that wait are a mistake, and hold their batches in
// memory.
constexpr int64_t kMostWaiting = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(TrainerSpec spec,
                                                         std::shared_ptr<const BatchQueue> base,
                                                         ServedModels* models, Metrics* metrics) {
  const ModelConfig& config = base->config();
  BRAID_ASSIGN_OR_RETURN(Loss loss, Loss::Create(spec.loss, config));
  BRAID_RETURN_IF_ERROR(CheckOptimizer(spec.optimizer));
  spec.loss = loss.spec();
  spec.base_version = base->version();

  const ReplicaSet& served = base->replicas();
  std::vector<std::unique_ptr<Replica>> replicas(served.size());
  BRAID_RETURN_IF_ERROR(RunOnEach(served.workers(), Phase::kLoad, [&](size_t r) {
    replicas[r] = served.replica(r).Clone();
    return absl::OkStatus();
  }));
  std::vector<std::string> devices;
  for (const Worker* worker : served.workers()) {
    devices.push_back(worker->name());
  }
  BRAID_ASSIGN_OR_RETURN(
      std::unique_ptr<DataParallel> model,
      DataParallel::Create(config, std::move(loss), served.workers(), std::move(replicas)));
  return std::unique_ptr<Trainer>(
      new Trainer(std::move(spec), config, std::move(model), std::move(devices), models, metrics));
}

Trainer::Trainer(TrainerSpec spec, ModelConfig config, std::unique_ptr<DataParallel> model,
                 std::vector<std::string> devices, ServedModels* models, Metrics* metrics)
    : spec_(std::move(spec)),
      config_(std::move(config)),
      devices_(std::move(devices)),
      models_(models),
      metrics_(metrics),
      model_(std::move(model)),
      thread_("trainer") {}

Trainer::~Trainer() {
  const absl::MutexLock lock(&mu_);
  deleted_ = true;
}

void Trainer::Submit(Operation operation, OperationDone done) {
  // The task may be dropped unrun, the callback may not.
  auto shared = std::make_shared<OperationDone>(std::move(done));
  absl::Status queued = Enqueue([this, operation = std::move(operation), shared]() mutable {
    (*shared)(Apply(std::move(operation)));
  });
  if (!queued.ok()) {
    (*shared)(std::move(queued));
  }
}

void Trainer::GetState(StateDone done) {
  auto shared = std::make_shared<StateDone>(std::move(done));
  absl::Status queued = Enqueue([this, shared] {
    absl::Status alive = CheckAlive();
    (*shared)(alive.ok() ? model_->State() : std::move(alive));
  });
  if (!queued.ok()) {
    (*shared)(std::move(queued));
  }
}

absl::Status Trainer::Enqueue(TaskThread::Task task) {
  const absl::MutexLock lock(&mu_);
  if (waiting_ >= kMostWaiting) {
    return absl::ResourceExhaustedError(absl::StrCat("trainer '", spec_.name, "' has ", waiting_,
                                                     " operations waiting; send fewer at a time"));
  }
  ++waiting_;
  thread_.Post([this, task = std::move(task)]() mutable {
    task();
    const absl::MutexLock done(&mu_);
    --waiting_;
  });
  return absl::OkStatus();
}

absl::Status Trainer::CheckAlive() const {
  const absl::MutexLock lock(&mu_);
  if (deleted_) {
    return absl::NotFoundError(absl::StrCat("trainer '", spec_.name, "' has been deleted"));
  }
  return torn_;
}

absl::StatusOr<OperationResult> Trainer::Apply(Operation operation) {
  BRAID_RETURN_IF_ERROR(CheckAlive());
  BRAID_ASSIGN_OR_RETURN(std::optional<OperationResult> recorded,
                         sequence_.Admit(operation.sequence, operation.fingerprint));
  if (recorded) {
    return *std::move(recorded);
  }
  BRAID_ASSIGN_OR_RETURN(OperationResult result, Execute(operation));
  result.applied_sequence = operation.sequence;
  {
    const absl::MutexLock lock(&mu_);
    applied_ = operation.sequence;
    accumulated_ = model_->accumulated();
    result.step = step_;
  }
  sequence_.Record(operation.sequence, operation.fingerprint, result);
  return result;
}

absl::StatusOr<OperationResult> Trainer::Execute(Operation& operation) {
  // Checked first: what is wrong with the update must not come out after the backward pass.
  BRAID_ASSIGN_OR_RETURN(const OptimizerSpec optimizer,
                         WithHyperParameters(spec_.optimizer, operation.hyper_parameters));
  switch (operation.kind) {
    case OperationKind::kPublish:
      return RunPublish();
    case OperationKind::kOptimStep:
      if (model_->accumulated() == 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("trainer '", spec_.name,
                         "' has no gradients to update from; call ForwardBackward first"));
      }
      BRAID_RETURN_IF_ERROR(RunUpdate(optimizer));
      return OperationResult();
    case OperationKind::kForward:
    case OperationKind::kForwardBackward:
      return RunBatch(operation);
    case OperationKind::kStep:
      break;
  }
  BRAID_ASSIGN_OR_RETURN(OperationResult result, RunBatch(operation));
  BRAID_RETURN_IF_ERROR(RunUpdate(optimizer));
  return result;
}

absl::StatusOr<OperationResult> Trainer::RunBatch(Operation& operation) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> inputs,
                         CheckInputs(config_, std::move(operation.inputs), "inputs"));
  const bool forward_only = operation.kind == OperationKind::kForward;
  BRAID_ASSIGN_OR_RETURN(BatchResult batch,
                         forward_only ? model_->Forward(inputs, operation.targets, operation.mode)
                                      : model_->ForwardBackward(inputs, operation.targets));
  if (batch.loss) {
    metrics_->RecordLoss(spec_.name, *batch.loss, RowsOf(inputs));
  }
  OperationResult result;
  result.loss = batch.loss;
  result.outputs = std::move(batch.outputs);
  for (size_t r = 0; r < batch.split.size(); ++r) {
    result.chunks.push_back({devices_[r], batch.split[r]});
  }
  return result;
}

absl::Status Trainer::RunUpdate(const OptimizerSpec& optimizer) {
  const absl::Status status = model_->Update(optimizer);
  const absl::MutexLock lock(&mu_);
  if (!status.ok()) {
    torn_ = absl::DataLossError(absl::StrCat(
        "trainer '", spec_.name, "' is lost: an update failed halfway: ", status.message()));
    return torn_;
  }
  ++step_;
  metrics_->CountTrainingStep(spec_.name);
  return absl::OkStatus();
}

absl::StatusOr<OperationResult> Trainer::RunPublish() {
  BRAID_ASSIGN_OR_RETURN(auto replicas, model_->Clone());
  OperationResult result;
  result.model = spec_.model;
  BRAID_ASSIGN_OR_RETURN(result.version, models_->Publish(spec_.model, std::move(replicas)));
  return result;
}

TrainerInfo Trainer::info() const {
  const absl::MutexLock lock(&mu_);
  return {spec_, devices_, step_, applied_, /*durable_sequence=*/0, accumulated_};
}

}  // namespace braid
