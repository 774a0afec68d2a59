// How a trainer's model leaves it: as a file, and as a version that serves.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/batching/batch_queue.h"
#include "server/devices/run_on.h"
#include "server/storage/checksum.h"
#include "server/storage/model_files.h"
#include "server/storage/safetensors.h"
#include "server/training/trainer/trainer.h"

namespace braid {
namespace {

std::string ChecksumOfState(const std::vector<StateTensor>& state) {
  Checksum checksum;
  for (const StateTensor& entry : state) {
    checksum.Add(entry.tensor.name);
    checksum.Add({static_cast<const char*>(entry.tensor.data), entry.tensor.bytes});
  }
  return checksum.Hex();
}

// Collects what is written to it.
class StringSink final : public ByteSink {
 public:
  absl::Status Write(absl::string_view bytes) override {
    absl::StrAppend(&text, bytes);
    return absl::OkStatus();
  }
  std::string text;
};

}  // namespace

absl::StatusOr<ReplicaSet> Trainer::MakeReplicas(const Replica& whole) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<const BatchQueue> served,
                         services_.models->FindReplicas(spec_.model, 0));
  const std::vector<Worker*>& workers = served->replicas().workers();
  std::vector<std::unique_ptr<Replica>> replicas(workers.size());
  for (size_t r = 0; r < workers.size(); ++r) {
    // One after the other: a replica is one thread's.
    BRAID_RETURN_IF_ERROR(RunOnEach({workers[r]}, Phase::kLoad, [&](size_t) -> absl::Status {
      BRAID_ASSIGN_OR_RETURN(replicas[r],
                             whole.CloneStage(StageRole(), workers[r]->torch_device()));
      return absl::OkStatus();
    }));
  }
  return ReplicaSet(workers, std::move(replicas));
}

absl::StatusOr<std::string> Trainer::ExportNow(ExportFormat format,
                                               const std::vector<StateTensor>& state) {
  StringSink sink;
  if (format == ExportFormat::kSafetensors) {
    std::vector<HostTensor> tensors;
    for (const StateTensor& entry : state) {
      tensors.push_back(entry.tensor);
    }
    BRAID_RETURN_IF_ERROR(WriteSafetensors(&sink, tensors));
  } else {
    BRAID_RETURN_IF_ERROR(host_model_->With(
        state, [&](const Replica& whole) { return WriteFile(whole, format, &sink); }));
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
                                         ? "an exported pair; expected PACKAGE or SAFETENSORS"
                                         : "a TorchScript module; expected TORCHSCRIPT or "
                                           "SAFETENSORS"));
  }
  return files.front().write(sink);
}

absl::StatusOr<OperationResult> Trainer::RunPublish(const Operation& operation) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<StateTensor> state, model_->State());
  VersionOrigin origin;
  origin.trainer = spec_.name;
  origin.trainer_id = id_;
  origin.sequence = operation.sequence;
  origin.last_operator = sequence_.last_operator();
  origin.weights_checksum = ChecksumOfState(state);
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
  result.model = spec_.model;
  BRAID_RETURN_IF_ERROR(host_model_->With(state, [&](const Replica& whole) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(ReplicaSet replicas, MakeReplicas(whole));
    BRAID_ASSIGN_OR_RETURN(result.version,
                           services_.publisher->Publish(config_, std::move(replicas), origin,
                                                        [&whole] { return whole.Files(); }));
    return absl::OkStatus();
  }));
  model_->DropKept();
  return result;
}

}  // namespace braid
