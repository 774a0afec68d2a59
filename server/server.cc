#include "server/server.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "prometheus/collectable.h"
#include "server/access/access_control.h"
#include "server/access/model_allowlist.h"
#include "server/access/reloaded_files.h"
#include "server/access/tls_files.h"
#include "server/admission/admission.h"
#include "server/admission/drain_time.h"
#include "server/base/atomic_file.h"
#include "server/base/clock.h"
#include "server/base/local_address.h"
#include "server/base/status.h"
#include "server/datasets/dataset_store.h"
#include "server/decode/decode_threads.h"
#include "server/devices/device_pool.h"
#include "server/devices/torch_settings.h"
#include "server/jobs/jobs.h"
#include "server/models/config/config_reader.h"
#include "server/models/operator_libraries.h"
#include "server/remote/object_copies.h"
#include "server/remote/object_path.h"
#include "server/remote/object_store.h"
#include "server/remote/repository_mirror.h"
#include "server/rpc/jobs/stored_job_spec.h"
#include "server/rpc/server/grpc_server.h"
#include "server/rpc/server/health_server.h"
#include "server/rpc/training/stored_requests.h"
#include "server/server_state.h"
#include "server/serving/load_model.h"
#include "server/serving/model_control.h"
#include "server/serving/served_models.h"
#include "server/shared_memory/shared_regions.h"
#include "server/status_reader.h"
#include "server/storage/directory_lock.h"
#include "server/storage/files.h"
#include "server/telemetry/gpu/gpu_metrics.h"
#include "server/telemetry/health.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/metrics_server.h"
#include "server/telemetry/process_metrics.h"
#include "server/telemetry/state_metrics.h"
#include "server/telemetry/status_report.h"
#include "server/tracking/tracking.h"
#include "server/training/trainer/job_gate.h"
#include "server/training/trainer/publisher.h"
#include "server/training/trainer/step_profiler.h"
#include "server/training/trainer/trainer_registry.h"
#include "server/training/trainer/trainer_storage.h"

namespace braid {
namespace {

// File in the data directory for the results of row independence tests.
constexpr char kRowTestsFile[] = "row_tests.json";
// Directory in the data directory for arrays that are unpacked while they are used.
constexpr char kScratchDirectory[] = "scratch";
// Directories in the data directory for copies of data in S3, for the mirror of a repository there,
// and for outputs that are uploaded.
constexpr char kS3Directory[] = "s3";
constexpr char kS3ModelsDirectory[] = "s3_models";
constexpr char kS3OutputsDirectory[] = "s3_outputs";
// How long a drain waits for clients to read their replies.
constexpr absl::Duration kReplyTimeout = absl::Seconds(10);
// How long saving trainers may take after the drain timeout.
constexpr absl::Duration kFinalSaveTimeout = absl::Seconds(10);

// Returns the names of the slots on GPUs.
std::set<std::string> GpuNames(const std::vector<DeviceSlotView>& slots) {
  std::set<std::string> names;
  for (const DeviceSlotView& slot : slots) {
    if (slot.kind != DeviceKind::kCpu) {
      names.insert(slot.name);
    }
  }
  return names;
}

// Returns TrainerServices::memory.
std::map<std::string, int64_t> TrainerMemory(const DevicePool& pool,
                                             std::optional<int64_t> bytes_per_device) {
  std::map<std::string, int64_t> limits = pool.memory();
  for (auto& [device, bytes] : limits) {
    bytes = bytes_per_device.value_or(bytes / 2);
  }
  return limits;
}

// Prefixes an error with the flag.
absl::Status WithFlag(absl::string_view flag, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

// Creates the directory of a flag; no-op for an empty path.
absl::Status MakeDirectoryOf(absl::string_view flag, const std::string& path) {
  if (path.empty()) {
    return absl::OkStatus();
  }
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && access(path.c_str(), W_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": '", path, "' is not a writable directory"));
}

absl::Status CheckProfile(const std::string& path) {
  if (path.empty()) {
    return absl::OkStatus();
  }
  // The file is written after the last profiled operation. Reports a bad path at start.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!std::filesystem::is_directory(path, error) &&
      access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--profile: '", path, "' is not a writable file"));
}

// Returns the limit of gRPC's buffers: the limit of requests in flight, and at least one message.
size_t BufferBytes(const Options& options) {
  constexpr size_t kRoom = size_t{64} << 20;
  return std::max(options.max_request_bytes,
                  static_cast<size_t>(options.max_message_bytes) + kRoom);
}

// Compressed messages can expand a thousandfold before gRPC checks their size, so they are off by
// default beyond loopback.
bool AcceptsCompression(const Options& options) {
  return options.accept_compression || (IsLoopback(options.listen) && !options.refuse_compression);
}

// INVALID_ARGUMENT if other machines can reach the server without authentication, or tokens travel
// in plaintext, unless a flag allows it.
absl::Status CheckExposure(const Options& options) {
  if (IsLoopback(options.listen)) {
    return absl::OkStatus();
  }
  const bool plaintext = options.tls_cert.empty();
  const bool authenticates = !options.auth_tokens.empty() || !options.auth_certificates.empty();
  if (!authenticates && !options.allow_unauthenticated) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: ", options.listen,
                     " is reachable from other machines without authentication (expected "
                     "--auth_tokens or --auth_certificates, or --allow_unauthenticated)"));
  }
  if (authenticates && plaintext && !options.tls_terminated_in_front) {
    return absl::InvalidArgumentError(
        absl::StrCat("--auth_tokens: clients would send tokens to ", options.listen,
                     " in plaintext (expected --tls_cert and --tls_key, or "
                     "--tls_terminated_in_front)"));
  }
  return absl::OkStatus();
}

bool UsesS3(const Options& options) {
  return IsObjectPath(options.model_repository) || !options.s3_allow.empty();
}

absl::Status CheckS3(const Options& options) {
  if (UsesS3(options) && options.data_dir.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.s3_allow.empty() ? "--model_repository" : "--s3_allow",
                     ": needs --data_dir, for copies of objects"));
  }
  return absl::OkStatus();
}

absl::Status CheckUploads(const Options& options) {
  if (options.allow_model_upload && options.data_dir.empty()) {
    return absl::InvalidArgumentError("--allow_model_upload: needs --data_dir, for the files");
  }
  if (options.allow_model_upload && !options.model_allowlist.empty()) {
    return absl::InvalidArgumentError(
        "--allow_model_upload: excludes --model_allowlist, which lists no uploaded file");
  }
  return absl::OkStatus();
}

}  // namespace

class Server::Parts {
 public:
  explicit Parts(const Options& options)
      : options_(options),
        admission_({options.max_requests, options.max_request_bytes, options.max_client_requests,
                    options.max_client_request_bytes}),
        streams_(options.max_client_requests),
        decode_threads_(static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U))) {}
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  absl::Status Start() {
    BRAID_RETURN_IF_ERROR(CheckFlags());
    LimitTorchLog();
    SetNumerics(options_.tf32, options_.deterministic);
    BRAID_RETURN_IF_ERROR(
        WithFlag("--operator_libraries", LoadOperatorLibraries(options_.operator_libraries)));
    absl::StatusOr<std::unique_ptr<DevicePool>> pool = DevicePool::Create(
        {options_.devices, options_.cpu_threads, options_.training_share, &clock_, &metrics_,
         [this](const absl::Status& why) { health_.MarkDeviceLost(why.message()); }});
    BRAID_RETURN_IF_ERROR(WithFlag("--devices", pool.status()));
    pool_ = *std::move(pool);
    models_ = std::make_unique<ServedModels>(
        pool_->workers(), &metrics_,
        options_.data_dir.empty() ? "" : absl::StrCat(options_.data_dir, "/", kRowTestsFile));
    if (options_.allow_client_shared_memory) {
      regions_ = std::make_unique<SharedRegions>(DevicePool::gpu_memory());
    }
    BRAID_RETURN_IF_ERROR(OpenStorage());
    BRAID_RETURN_IF_ERROR(OpenDatasets());
    OpenJobs();
    // Binds the ports before loading models, so that a port in use fails early. The gate stays
    // closed until then, so that clients do not see an empty server.
    admission_.Close("is starting");
    BRAID_ASSIGN_OR_RETURN(
        metrics_server_,
        MetricsServer::Create(options_.listen, options_.metrics_port, metrics_, health_));
    if (options_.health_port) {
      BRAID_ASSIGN_OR_RETURN(
          health_server_, HealthServer::Create(options_.listen, *options_.health_port, &health_));
    }
    ServeGpuMetrics();
    ServeStateMetrics();
    MakeControl();
    BRAID_RETURN_IF_ERROR(ServeGrpc());
    BRAID_RETURN_IF_ERROR(
        WithFlag(options_.load_models.empty() ? "--model_repository" : "--load_model",
                 control_->Start(options_.load_models)));
    BRAID_RETURN_IF_ERROR(CheckModels());
    trainers_->RestoreStored();
    jobs_->Start();
    ServeStatus();
    admission_.Open();
    health_.SetReady();
    control_->StartPolling(options_.repository_poll);
    Log(LogModule::kServer)
        .info("ready: gRPC on {}:{}, metrics on http://{}:{}/metrics{}", options_.listen,
              grpc_server_->port(), options_.listen, metrics_server_->port(),
              health_server_ == nullptr
                  ? ""
                  : fmt::format(", health on {}:{}", options_.listen, health_server_->port()));
    return WriteReadyFile();
  }

  bool Drain(const absl::Notification& hurry) {
    health_.SetNotReady("is shutting down");
    if (options_.drain_delay > absl::ZeroDuration()) {
      Log(LogModule::kServer)
          .info("not ready: accepting requests for another {}",
                absl::FormatDuration(options_.drain_delay));
      hurry.WaitForNotificationWithTimeout(options_.drain_delay);
    }
    admission_.Close();
    // Streams reply to what they have received, which counts as in flight until then.
    streams_.Close(absl::UnavailableError("the server is shutting down"));
    trainers_->CancelReplays();
    jobs_->RequestStop();  // They end their steps while requests end.
    DrainTime time(options_.drain_timeout, &hurry);
    if (!FinishRequests(&time, hurry)) {
      SaveIdleTrainers();
      return false;
    }
    control_->Stop();
    grpc_server_->Shutdown();
    if (!DrainJobs(&time)) {
      SaveIdleTrainers();
      return false;
    }
    Log(LogModule::kServer).info("drained: no requests in flight, saving trainers");
    publisher_->Flush();
    if (!trainers_->SaveAll()) {
      return false;
    }
    // Nothing writes to the directories any more. Releases them for another server before the
    // remaining parts are destroyed.
    metrics_server_->Remove(state_metrics_);  // uses the trainers, like the status
    metrics_server_->SetStatus(nullptr);
    jobs_.reset();
    trainers_.reset();
    tracking_.reset();
    data_dir_lock_.Close();
    if (datasets_ != nullptr) {
      datasets_->Unlock();
    }
    return true;
  }

 private:
  absl::Status ReadAccessFiles() {
    std::vector<ReloadedFiles*> files;
    if (!options_.tls_cert.empty()) {
      BRAID_ASSIGN_OR_RETURN(
          tls_, TlsFiles::Create({options_.tls_cert, options_.tls_key, options_.tls_client_ca}));
      files.push_back(tls_->files());
    }
    if (!options_.auth_tokens.empty() || !options_.auth_certificates.empty()) {
      BRAID_ASSIGN_OR_RETURN(
          access_, AccessControl::Create({options_.auth_tokens, options_.auth_certificates}));
      files.push_back(access_->files());
    }
    if (!options_.model_allowlist.empty()) {
      BRAID_ASSIGN_OR_RETURN(allowlist_,
                             ModelAllowlist::Create(options_.model_allowlist, repository_));
      files.push_back(allowlist_->files());
    }
    if (!files.empty()) {
      reloader_ = std::make_unique<Reloader>(std::move(files));
    }
    return absl::OkStatus();
  }

  // Waits for requests in flight and for their replies. False if the drain timeout passes first.
  bool FinishRequests(DrainTime* time, const absl::Notification& hurry) {
    const auto report = [this](absl::Duration left) {
      Log(LogModule::kServer)
          .info("draining: {} requests in flight, {} until the timeout", admission_.in_flight(),
                absl::FormatDuration(absl::Trunc(left, absl::Seconds(1))));
    };
    report(options_.drain_timeout);
    if (!time->Await([this](absl::Duration wait) { return admission_.WaitUntilIdle(wait); },
                     report)) {
      Log(LogModule::kServer)
          .error("drain timeout: {} requests are still in flight", admission_.in_flight());
      return false;
    }
    grpc_server_->StopListening();
    DrainTime readers(std::min(kReplyTimeout, options_.drain_timeout), &hurry);
    const auto report_readers = [](absl::Duration) {
      Log(LogModule::kServer).info("draining: waiting for clients to read their replies");
    };
    const auto replied = [this](absl::Duration wait) { return admission_.WaitUntilReplied(wait); };
    const auto over = [this](absl::Duration wait) { return streams_.WaitUntilEmpty(wait); };
    const auto delivered = [this](absl::Duration wait) {
      return grpc_server_->WaitUntilDelivered(wait);
    };
    if (!readers.Await(replied, report_readers) || !readers.Await(over, report_readers) ||
        !readers.Await(delivered, report_readers)) {
      Log(LogModule::kServer).warn("draining: dropping replies that clients do not read");
    }
    return true;
  }

  // Waits until running jobs are back in the queue. False if the drain timeout passes first.
  bool DrainJobs(DrainTime* time) {
    const bool drained = time->Await(
        [this](absl::Duration wait) { return jobs_->Drain(absl::Now() + wait); },
        [](absl::Duration) {
          Log(LogModule::kServer).info("draining: waiting for jobs to stop at their next step");
        });
    if (!drained) {
      Log(LogModule::kServer)
          .error("drain timeout: jobs still run; they continue as after a crash");
    }
    return drained;
  }

  // Saves the trainers before the process exits with requests in flight. A stuck request can block
  // its trainer forever.
  void SaveIdleTrainers() {
    const auto saved = std::make_shared<absl::Notification>();
    std::thread([this, saved] {
      publisher_->Flush();
      trainers_->SaveAll();
      saved->Notify();
    }).detach();
    if (!saved->WaitForNotificationWithTimeout(kFinalSaveTimeout)) {
      Log(LogModule::kServer).error("trainers that are still busy, or versions, were not saved");
    }
  }

  // Adds metrics of all GPUs that the driver reports.
  void ServeGpuMetrics() {
#ifdef BRAID_WITH_NVML
    absl::StatusOr<std::shared_ptr<GpuMetrics>> gpus = GpuMetrics::Open(kNvmlLibrary);
    if (gpus.ok()) {
      gpu_metrics_ = *gpus;
      find_gpu_ = [gpus = *gpus](const GpuId& id) -> std::optional<GpuLabels> {
        const auto labels = gpus->Find(id.uuid, id.pci_id);
        return labels ? std::optional<GpuLabels>({labels->gpu, labels->uuid}) : std::nullopt;
      };
      read_gpu_memory_ = [gpus = *gpus](const std::string& uuid) -> std::optional<GpuMemoryUse> {
        const auto memory = gpus->ReadMemory(uuid);
        return memory ? std::optional<GpuMemoryUse>({memory->used, memory->total}) : std::nullopt;
      };
      metrics_server_->Add(gpu_metrics_);
    } else {
      Log(LogModule::kServer)
          .info("GPU metrics are disabled: {}", std::string(gpus.status().message()));
    }
#endif
  }

  ServerStateReader MakeStateReader() const {
    return {&admission_,
            models_.get(),
            trainers_.get(),
            jobs_.get(),
            datasets_ == nullptr ? nullptr : &datasets_->space(),
            pool_.get(),
            find_gpu_};
  }

  void ServeStateMetrics() {
    state_metrics_ =
        std::make_shared<StateMetrics>([reader = MakeStateReader()] { return reader.Read(); });
    metrics_server_->Add(state_metrics_);
    metrics_server_->Add(process_metrics_);
  }

  void ServeStatus() {
    metrics_server_->SetStatus(
        [reader = StatusReader({start_, MakeStateReader(), &health_, &metrics_, trainers_.get(),
                                jobs_.get(), pool_.get(), read_gpu_memory_})] {
          return ToJson(reader.Read());
        });
  }

  absl::Status OpenStorage() {
    std::unique_ptr<TrainerStorage> storage;
    if (!options_.data_dir.empty()) {
      scratch_directory_ = absl::StrCat(options_.data_dir, "/", kScratchDirectory);
      BRAID_RETURN_IF_ERROR(WithFlag("--data_dir", MakeDirectories(scratch_directory_)));
      absl::StatusOr<FileDescriptor> lock = LockDirectory(options_.data_dir);
      BRAID_RETURN_IF_ERROR(WithFlag("--data_dir", lock.status()));
      data_dir_lock_ = *std::move(lock);
      BRAID_ASSIGN_OR_RETURN(storage, TrainerStorage::Open(options_.data_dir));
      BRAID_RETURN_IF_ERROR(ConnectS3());
    }
    BRAID_ASSIGN_OR_RETURN(
        publisher_, Publisher::Open(models_.get(), repository_, options_.data_dir,
                                    [this](const std::string& path) { return CheckFile(path); }));
    if (!options_.profile.empty()) {
      profiler_ = std::make_unique<StepProfiler>(options_.profile, options_.profile_steps);
    }
    if (!options_.tracking_dir.empty()) {
      auto tracking = Tracking::Create(options_.tracking_dir, &clock_);
      BRAID_RETURN_IF_ERROR(WithFlag("--tracking_dir", tracking.status()));
      tracking_ = *std::move(tracking);
    }
    if (std::set<std::string> gpus = GpuNames(pool_->View()); !gpus.empty()) {
      job_gate_ = std::make_unique<JobGate>(std::move(gpus));
    }
    trainers_ = std::make_unique<TrainerRegistry>(
        TrainerServices{models_.get(), publisher_.get(), &metrics_, &trainer_pools_,
                        profiler_.get(), options_.overlap_reduction, pool_->training_workers(),
                        pool_->background_workers(), job_gate_.get(), tracking_.get(),
                        TrainerMemory(*pool_, options_.trainer_memory), ReadStoredOperation},
        std::move(storage), ReadStoredSpec, static_cast<size_t>(options_.max_trainers));
    return absl::OkStatus();
  }

  absl::Status OpenDatasets() {
    if (options_.dataset_root.empty()) {
      return absl::OkStatus();
    }
    auto datasets = DatasetStore::Open({options_.dataset_root, options_.dataset_quota, &clock_});
    BRAID_RETURN_IF_ERROR(WithFlag("--dataset_root", datasets.status()));
    datasets_ = *std::move(datasets);
    return absl::OkStatus();
  }

  // Opens what --s3_allow and a repository in S3 need. The data directory is locked.
  absl::Status ConnectS3() {
    if (!UsesS3(options_)) {
      return absl::OkStatus();
    }
    for (const std::string& prefix : options_.s3_allow) {
      absl::StatusOr<std::string> path = ParseObjectPath(prefix);
      BRAID_RETURN_IF_ERROR(WithFlag("--s3_allow", path.status()));
      s3_data_.prefixes.push_back(*std::move(path));
    }
    BRAID_ASSIGN_OR_RETURN(objects_, ObjectStore::Connect());
    if (!options_.s3_allow.empty()) {
      BRAID_ASSIGN_OR_RETURN(
          copies_,
          ObjectCopies::Open(objects_.get(), absl::StrCat(options_.data_dir, "/", kS3Directory),
                             options_.data_cache_bytes));
      s3_data_.store = objects_.get();
      s3_data_.copies = copies_.get();
    }
    if (IsObjectPath(options_.model_repository)) {
      absl::StatusOr<std::string> path = ParseObjectPath(options_.model_repository);
      BRAID_RETURN_IF_ERROR(WithFlag("--model_repository", path.status()));
      BRAID_ASSIGN_OR_RETURN(mirror_, RepositoryMirror::Open(objects_.get(), *std::move(path),
                                                             absl::StrCat(options_.data_dir, "/",
                                                                          kS3ModelsDirectory)));
    }
    return absl::OkStatus();
  }

  // Checks the flags, reads the files that they name, and makes the directories.
  absl::Status CheckFlags() {
    BRAID_RETURN_IF_ERROR(WithFlag("--listen", CheckLocalAddress(options_.listen)));
    BRAID_RETURN_IF_ERROR(CheckExposure(options_));
    BRAID_RETURN_IF_ERROR(CheckUploads(options_));
    BRAID_RETURN_IF_ERROR(CheckS3(options_));
    BRAID_RETURN_IF_ERROR(MakeDirectoryOf("--data_dir", options_.data_dir));
    if (IsObjectPath(options_.model_repository)) {
      repository_ =
          RepositoryMirror::ModelsIn(absl::StrCat(options_.data_dir, "/", kS3ModelsDirectory));
      BRAID_RETURN_IF_ERROR(WithFlag("--data_dir", MakeDirectories(repository_)));
    }
    BRAID_RETURN_IF_ERROR(ReadAccessFiles());
    BRAID_RETURN_IF_ERROR(MakeDirectoryOf("--output_root", options_.output_root));
    BRAID_RETURN_IF_ERROR(MakeDirectoryOf("--tracking_dir", options_.tracking_dir));
    BRAID_RETURN_IF_ERROR(MakeDirectoryOf("--dataset_root", options_.dataset_root));
    return CheckProfile(options_.profile);
  }

  absl::Status ServeGrpc() {
    BRAID_ASSIGN_OR_RETURN(
        grpc_server_,
        GrpcServer::Create(
            {options_.listen,
             options_.grpc_port,
             {options_.max_connection_streams, options_.max_connection_age,
              options_.max_connection_age_grace, options_.max_connection_idle,
              AcceptsCompression(options_), options_.max_message_bytes, BufferBytes(options_)},
             models_.get(),
             control_.get(),
             trainers_.get(),
             publisher_.get(),
             options_.allow_model_upload ? options_.max_upload_bytes : 0,
             &admission_,
             &streams_,
             &metrics_,
             &health_,
             regions_.get(),
             &decode_threads_,
             tls_.get(),
             access_.get(),
             [this] { return pool_->View(); },
             DataPaths(),
             datasets_.get(),
             jobs_.get()}));
    return absl::OkStatus();
  }

  // At start, a mirror of an earlier start is served if S3 cannot be reached.
  absl::Status UpdateMirror() {
    absl::Status updated = mirror_->Update();
    std::error_code error;
    if (!updated.ok() && !health_.readiness().ok() &&
        !std::filesystem::is_empty(repository_, error)) {
      Log(LogModule::kModels)
          .error("serving the copy of the model repository of the last start: {}",
                 std::string(updated.message()));
      return absl::OkStatus();
    }
    return updated;
  }

  DataDirectories DataPaths() const {
    DataDirectories paths{options_.data_roots, scratch_directory_};
    const auto is_datasets = [&](const std::string& root) {
      std::error_code error;
      return std::filesystem::equivalent(root, datasets_->root(), error);
    };
    if (datasets_ != nullptr && std::ranges::none_of(paths.roots, is_datasets)) {
      paths.roots.push_back(datasets_->root());
    }
    paths.remote = copies_ == nullptr ? nullptr : &s3_data_;
    return paths;
  }

  void OpenJobs() {
    JobsOptions jobs{options_.data_dir,
                     DataPaths(),
                     options_.output_root,
                     repository_,
                     absl::StrCat(options_.data_dir, "/", kS3OutputsDirectory),
                     options_.data_cache_bytes,
                     {options_.max_running_jobs, options_.max_queued_jobs}};
    jobs.scheduler.max_running_per_identity = options_.max_running_jobs_per_identity;
    jobs.scheduler.retention = options_.job_retention;
    jobs.scheduler.tracking = tracking_.get();
    jobs.scheduler.device_lost = [this] { return !health_.liveness().ok(); };
    if (jobs.output_root.empty() && !options_.data_dir.empty()) {
      jobs.output_root = absl::StrCat(options_.data_dir, "/outputs");
    }
    jobs_ = std::make_unique<Jobs>(std::move(jobs), trainers_.get(), publisher_.get(), &metrics_,
                                   ReadStoredJobSpec, &clock_);
  }

  void MakeControl() {
    auto loader = std::make_unique<ModelLoader>(
        ModelLoader::Options{
            repository_, ReadConfigFile, ParseConfigJson,
            [this](const std::string& model, const std::vector<int64_t>& versions) {
              publisher_->ServeStored(model, versions);
            },
            [this](const std::string& model, bool ready) { health_.SetModel(model, ready); },
            [this](const std::string& path) { return CheckFile(path); },
            [this](const std::string& model, const std::optional<ModelConfig>& config) {
              return publisher_->LoadStored(model, config);
            },
            [this] { return mirror_ == nullptr ? absl::OkStatus() : UpdateMirror(); }},
        models_.get());
    control_ = std::make_unique<ModelControl>(options_.model_control_mode, std::move(loader));
  }

  // Returns an error for a model file that the allowlist does not contain.
  absl::Status CheckFile(const std::string& path) const {
    return allowlist_ == nullptr ? absl::OkStatus() : allowlist_->Check(path);
  }

  absl::Status CheckModels() const {
    if (!options_.exit_on_error) {
      return absl::OkStatus();
    }
    for (const ModelState& model : models_->List()) {
      if (!model.ready && !model.reason.empty()) {
        return absl::FailedPreconditionError(absl::StrCat("--exit_on_error: failed to load model '",
                                                          model.name, "': ", model.reason));
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteReadyFile() const {
    if (options_.ready_file.empty()) {
      return absl::OkStatus();
    }
    const std::string health =
        health_server_ == nullptr ? "" : absl::StrCat(",\"health_port\":", health_server_->port());
    const std::string text = absl::StrCat("{\"grpc_port\":", grpc_server_->port(),
                                          ",\"metrics_port\":", metrics_server_->port(), health,
                                          ",\"pid\":", getpid(), "}\n");
    return WithFlag("--ready_file", WriteFileAtomically(options_.ready_file, text));
  }

  // In order of construction. Parts with threads come last.
  const absl::Time start_ = absl::Now();
  const Options options_;
  // Directory of the models' files: of the mirror if the repository is in S3.
  std::string repository_ = options_.model_repository;
  const RealClock clock_;
  Metrics metrics_;
  Admission admission_;
  OpenStreams streams_;
  std::unique_ptr<SharedRegions> regions_;     // null: disabled
  std::unique_ptr<TlsFiles> tls_;              // null: plaintext
  std::unique_ptr<AccessControl> access_;      // null: no authentication
  std::unique_ptr<ModelAllowlist> allowlist_;  // null: all files are allowed
  std::unique_ptr<Reloader> reloader_;         // null: no files to reload
  Health health_;
  std::unique_ptr<DevicePool> pool_;
  FileDescriptor data_dir_lock_{-1};
  std::string scratch_directory_ = std::filesystem::temp_directory_path();
  std::unique_ptr<ObjectStore> objects_;  // null: no S3
  std::unique_ptr<ObjectCopies> copies_;  // null: no --s3_allow
  RemoteData s3_data_;
  std::unique_ptr<RepositoryMirror> mirror_;  // null: the repository is a directory
  std::unique_ptr<ServedModels> models_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<StepProfiler> profiler_;  // null: no profiling
  std::unique_ptr<Tracking> tracking_;      // null: no --tracking_dir
  std::unique_ptr<JobGate> job_gate_;       // null: no GPUs
  TrainerPools trainer_pools_;
  std::unique_ptr<TrainerRegistry> trainers_;
  std::unique_ptr<DatasetStore> datasets_;  // null: no uploads of datasets
  std::unique_ptr<Jobs> jobs_;
  std::shared_ptr<prometheus::Collectable> gpu_metrics_;  // null: no NVML
  ServerStateReader::FindGpu find_gpu_ = [](const GpuId&) { return std::nullopt; };
  StatusReader::ReadMemory read_gpu_memory_ = [](const std::string&) { return std::nullopt; };
  std::shared_ptr<prometheus::Collectable> state_metrics_;
  const std::shared_ptr<prometheus::Collectable> process_metrics_ =
      std::make_shared<ProcessMetrics>();
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<HealthServer> health_server_;  // null: no separate port
  std::unique_ptr<ModelControl> control_;
  DecodeThreads decode_threads_;
  std::unique_ptr<GrpcServer> grpc_server_;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const Options& options) {
  auto parts = std::make_unique<Parts>(options);
  BRAID_RETURN_IF_ERROR(parts->Start());
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Server::~Server() = default;

bool Server::Drain(const absl::Notification& hurry) { return parts_->Drain(hurry); }

}  // namespace braid
