// How a trainer's model leaves it: as a file, and as a version that serves.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/storage/checksum.h"
#include "server/storage/model_files.h"
#include "server/storage/safetensors.h"
#include "server/training/trainer.h"

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

absl::StatusOr<ReplicaSet> Trainer::MakeReplicas(const std::vector<StateTensor>& state) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<const BatchQueue> served,
                         services_.models->FindReplicas(spec_.model, 0));
  const ReplicaSet& set = served->replicas();
  std::vector<std::unique_ptr<Replica>> replicas(set.size());
  BRAID_RETURN_IF_ERROR(RunOnEach(set.workers(), Phase::kLoad, [&](size_t r) {
    replicas[r] = set.replica(r).Clone();
    return LoadState(state, *replicas[r]);
  }));
  return ReplicaSet(set.workers(), std::move(replicas));
}

absl::StatusOr<std::unique_ptr<Replica>> Trainer::MakeExporter() {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<const BatchQueue> served,
                         services_.models->FindReplicas(spec_.model, 0));
  std::unique_ptr<Replica> exporter;
  BRAID_RETURN_IF_ERROR(
      RunOnEach(served->replicas().first_workers(1), Phase::kLoad, [&](size_t) -> absl::Status {
        BRAID_ASSIGN_OR_RETURN(exporter,
                               served->replicas().replica(0).CloneStage(StageRole(), c10::kCPU));
        return absl::OkStatus();
      }));
  return exporter;
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
    return std::move(sink.text);
  }
  const absl::string_view wanted =
      format == ExportFormat::kTorchScript ? kTorchScriptFile : kPackageFile;
  BRAID_ASSIGN_OR_RETURN(const std::vector<NewFile> files, ExportFiles(state));
  if (files.front().name != wanted) {
    return InvalidField("format",
                        absl::StrCat("model '", spec_.model, "' is ",
                                     files.front().name == kPackageFile
                                         ? "an exported pair; expected PACKAGE or SAFETENSORS"
                                         : "a TorchScript module; expected TORCHSCRIPT or "
                                           "SAFETENSORS"));
  }
  BRAID_RETURN_IF_ERROR(files.front().write(&sink));
  return std::move(sink.text);
}

absl::StatusOr<std::vector<NewFile>> Trainer::ExportFiles(const std::vector<StateTensor>& state) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<Replica> exporter, MakeExporter());
  std::vector<NewFile> files;
  const absl::Status loaded = CatchTorch([&]() -> absl::Status {
    BRAID_RETURN_IF_ERROR(LoadState(state, *exporter));
    files = exporter->Files();
    return absl::OkStatus();
  });
  BRAID_RETURN_IF_ERROR(loaded);
  return files;
}

absl::StatusOr<OperationResult> Trainer::RunPublish(const Operation& operation) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<StateTensor> state, model_->State());
  BRAID_ASSIGN_OR_RETURN(auto replicas, MakeReplicas(state));
  VersionOrigin origin;
  origin.trainer = spec_.name;
  origin.trainer_id = id_;
  origin.sequence = operation.sequence;
  origin.weights_checksum = ChecksumOfState(state);
  origin.created = absl::Now();
  {
    const absl::MutexLock lock(&mu_);
    origin.step = step_;
  }
  if (checkpointer_ != nullptr) {
    for (const CheckpointInfo& info : checkpointer_->List()) {
      // The operation itself changes no weights.
      if (info.sequence == operation.sequence - 1) {
        origin.checkpoint = info.name;
      }
    }
  }
  OperationResult result;
  result.model = spec_.model;
  BRAID_ASSIGN_OR_RETURN(result.version,
                         services_.publisher->Publish(spec_.model, std::move(replicas), origin,
                                                      [&] { return ExportFiles(state); }));
  model_->DropKept();
  return result;
}

}  // namespace braid
