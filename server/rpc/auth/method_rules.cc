#include "server/rpc/auth/method_rules.h"

#include "absl/container/flat_hash_map.h"

namespace braid {
namespace {

constexpr MethodRule kRules[] = {
    // inference.GRPCInferenceService
    {"ServerLive", Need::kOpen},
    {"ServerReady", Need::kOpen},
    {"ServerMetadata", Need::kAnyone},
    {"ModelReady", Need::kSee, Subject::kModel},
    {"ModelMetadata", Need::kSee, Subject::kModel},
    {"ModelConfig", Need::kSee, Subject::kModel},
    {"ModelStatistics", Need::kSee, Subject::kModel},
    {"RepositoryIndex", Need::kAnyone},
    {"ModelInfer", Need::kInfer, Subject::kModel},
    {"ModelStreamInfer", Need::kInfer, Subject::kModel},
    {"RepositoryModelLoad", Need::kAdmin, Subject::kModel, true},
    {"RepositoryModelUnload", Need::kAdmin, Subject::kModel, true},
    // Regions are shared by all clients and models.
    {"SystemSharedMemoryStatus", Need::kInfer},
    {"SystemSharedMemoryRegister", Need::kInfer, Subject::kServer, true},
    {"SystemSharedMemoryUnregister", Need::kInfer, Subject::kServer, true},
    {"CudaSharedMemoryStatus", Need::kInfer},
    {"CudaSharedMemoryRegister", Need::kInfer, Subject::kServer, true},
    {"CudaSharedMemoryUnregister", Need::kInfer, Subject::kServer, true},
    // Reading needs an identity; changing settings needs an admin (NeedOf()).
    {"TraceSetting", Need::kAnyone, Subject::kServer, true},
    {"LogSettings", Need::kAnyone, Subject::kServer, true},
    // braid.v1.TrainingService
    {"CreateTrainer", Need::kTrain, Subject::kModel, true},
    {"GetTrainer", Need::kTrain, Subject::kTrainer},
    {"ListTrainers", Need::kAnyone},
    {"DeleteTrainer", Need::kTrain, Subject::kTrainer, true},
    {"Step", Need::kTrain, Subject::kTrainer},
    {"ForwardBackward", Need::kTrain, Subject::kTrainer},
    {"OptimStep", Need::kTrain, Subject::kTrainer},
    {"Forward", Need::kTrain, Subject::kTrainer},
    {"Backward", Need::kTrain, Subject::kTrainer},
    {"Stream", Need::kTrain, Subject::kTrainer, true},
    {"Evaluate", Need::kTrain, Subject::kTrainer},
    {"SaveCheckpoint", Need::kTrain, Subject::kTrainer, true},
    {"RestoreCheckpoint", Need::kTrain, Subject::kTrainer, true},
    {"ListCheckpoints", Need::kTrain, Subject::kTrainer},
    {"GetHistory", Need::kTrain, Subject::kTrainer},
    {"ForkTrainer", Need::kTrain, Subject::kTrainer, true},
    {"ReplayTrainer", Need::kTrain, Subject::kTrainer, true},
    {"Publish", Need::kTrain, Subject::kTrainer, true},
    {"Rollback", Need::kTrain, Subject::kModel, true},
    {"GetStateDict", Need::kTrain, Subject::kTrainer, true},
    {"DownloadModel", Need::kTrain, Subject::kTrainer, true},
    // braid.v1.ModelService
    {"ListVersions", Need::kSee, Subject::kModel},
    {"Pin", Need::kAdmin, Subject::kModel, true},
    {"Unpin", Need::kAdmin, Subject::kModel, true},
    {"SetLabel", Need::kAdmin, Subject::kModel, true},
    {"DeleteVersion", Need::kAdmin, Subject::kModel, true},
    {"ReserveVersion", Need::kAdmin, Subject::kModel, true},
    {"UploadVersion", Need::kAdmin, Subject::kModel, true},
    // braid.v1.DataService. Whoever may use a model may look at the data for its jobs.
    {"GetDataset", Need::kSee},
    {"ListDatasets", Need::kSee},
    {"PreviewDataset", Need::kSee, Subject::kServer, true},
    // Every job may read every dataset, so changing one needs an admin of all models.
    {"StartDatasetUpload", Need::kAdmin, Subject::kServer, true},
    {"PutDataset", Need::kAdmin, Subject::kServer, true},
    {"DeleteDataset", Need::kAdmin, Subject::kServer, true},
    // braid.v1.JobService. NeedOf() chooses the role for SubmitJob; the others look at the job's
    // model once they have its record.
    {"SubmitJob", Need::kInfer, Subject::kModel, true},
    {"GetJob", Need::kSee},
    {"ListJobs", Need::kSee, Subject::kModel},
    {"WatchJob", Need::kSee},
    {"PauseJob", Need::kSee, Subject::kServer, true},
    {"ResumeJob", Need::kSee, Subject::kServer, true},
    {"CancelJob", Need::kSee, Subject::kServer, true},
    {"DeleteJob", Need::kSee, Subject::kServer, true},
    {"GetJobMetrics", Need::kSee},
    {"GetJobLogs", Need::kSee},
    // braid.v1.DeviceService
    {"ListDevices", Need::kAnyone},
};

absl::flat_hash_map<absl::string_view, const MethodRule*> ByMethod() {
  absl::flat_hash_map<absl::string_view, const MethodRule*> rules;
  for (const MethodRule& rule : kRules) {
    rules[rule.method] = &rule;
  }
  return rules;
}

}  // namespace

absl::Span<const MethodRule> MethodRules() { return kRules; }

const MethodRule& RuleOf(absl::string_view method) {
  static const auto& rules =
      *new absl::flat_hash_map<absl::string_view, const MethodRule*>(ByMethod());
  static const MethodRule kUnknown;
  const auto found = rules.find(method);
  return found == rules.end() ? kUnknown : *found->second;
}

}  // namespace braid
