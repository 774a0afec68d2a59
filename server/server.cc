#include "server/server.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/collectable.h"
#include "server/access/access_control.h"
#include "server/access/reloader.h"
#include "server/access/tls_files.h"
#include "server/admission/admission.h"
#include "server/base/atomic_file.h"
#include "server/base/clock.h"
#include "server/base/local_address.h"
#include "server/base/status.h"
#include "server/batching/model_control.h"
#include "server/batching/served_models.h"
#include "server/devices/device_pool.h"
#include "server/devices/numerics.h"
#include "server/models/config_reader.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/stored_spec.h"
#include "server/storage/directory_lock.h"
#include "server/storage/shared_regions.h"
#include "server/telemetry/gpu_metrics.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/metrics_server.h"
#include "server/training/publisher.h"
#include "server/training/trainer_registry.h"
#include "server/training/trainer_storage.h"
#include "spdlog/spdlog.h"

namespace braid {
namespace {

// How long replies that clients are slow to read keep the server.
constexpr absl::Duration kSlowReaders = absl::Seconds(10);
// How long calls that are still open after the drain, such as health watches, do.
constexpr absl::Duration kHangUp = absl::Seconds(1);

absl::Status NameFlag(absl::string_view flag, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

absl::Status MakeDataDir(const std::string& path) {
  if (path.empty()) {
    return absl::OkStatus();
  }
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && access(path.c_str(), W_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--data_dir: '", path, "' is no directory that can be written to"));
}

// INVALID_ARGUMENT where who can reach the server could do more than it was told to let them.
absl::Status CheckExposure(const Options& options) {
  if (IsLoopback(options.listen)) {
    return absl::OkStatus();
  }
  const bool plaintext = options.tls_cert.empty();
  const bool authenticates = !options.auth_tokens.empty() || !options.auth_certificates.empty();
  if (!authenticates && !options.allow_unauthenticated) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: ", options.listen,
                     " is reached from other machines, and everybody could do everything; expected "
                     "--auth_tokens or --auth_certificates, or --allow_unauthenticated"));
  }
  if (authenticates && plaintext && !options.tls_terminated_in_front) {
    return absl::InvalidArgumentError(
        absl::StrCat("--auth_tokens: tokens would come to ", options.listen,
                     " in plaintext; expected --tls_cert and --tls_key, or "
                     "--tls_terminated_in_front"));
  }
  return absl::OkStatus();
}

// What the world is told of being ready: not after a device was lost, whatever else. Thread-safe.
class Readiness {
 public:
  // From now on `server`, which outlives it or is taken back with nullptr, is told.
  void Tell(GrpcServer* server) {
    const absl::MutexLock lock(&mu_);
    server_ = server;
  }
  void Set(bool ready) {
    const absl::MutexLock lock(&mu_);
    ready_ = ready;
    Announce();
  }
  void LoseDevice() {
    const absl::MutexLock lock(&mu_);
    lost_ = true;
    Announce();
  }

 private:
  void Announce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (server_ != nullptr) {
      server_->SetReady(ready_ && !lost_);
    }
  }

  absl::Mutex mu_;
  GrpcServer* server_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  bool lost_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

class Server::Parts {
 public:
  explicit Parts(const Options& options)
      : options_(options), admission_({options.max_requests, options.max_request_bytes}) {}
  ~Parts() { readiness_.Tell(nullptr); }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  absl::Status Start() {
    BRAID_RETURN_IF_ERROR(NameFlag("--listen", CheckLocalAddress(options_.listen)));
    BRAID_RETURN_IF_ERROR(CheckExposure(options_));
    BRAID_RETURN_IF_ERROR(ReadAccessFiles());
    BRAID_RETURN_IF_ERROR(MakeDataDir(options_.data_dir));
    SetNumerics(options_.tf32, options_.deterministic);
    absl::StatusOr<std::unique_ptr<DevicePool>> pool = DevicePool::Create(
        {options_.devices, options_.cpu_threads, options_.training_share, &clock_, &metrics_,
         [this](const absl::Status&) { readiness_.LoseDevice(); }});
    BRAID_RETURN_IF_ERROR(NameFlag("--devices", pool.status()));
    pool_ = *std::move(pool);
    models_ = std::make_unique<ServedModels>(pool_->workers(), &metrics_);
    BRAID_RETURN_IF_ERROR(OpenStorage());
    // The ports first: one that is in use should not cost the time to load the models. Until the
    // models and trainers are there, nobody must be told that there are none.
    admission_.Close("is starting");
    BRAID_ASSIGN_OR_RETURN(metrics_server_,
                           MetricsServer::Create(options_.listen, options_.metrics_port, metrics_));
    ServeGpuMetrics();
    MakeControl();
    BRAID_ASSIGN_OR_RETURN(
        grpc_server_,
        GrpcServer::Create({options_.listen, options_.grpc_port, models_.get(), control_.get(),
                            trainers_.get(), &admission_, &metrics_,
                            options_.allow_client_shared_memory ? &regions_ : nullptr, tls_.get(),
                            access_.get(), [this] { return pool_->View(); }}));
    BRAID_RETURN_IF_ERROR(
        NameFlag(options_.load_models.empty() ? "--model_repository" : "--load_model",
                 control_->Start(options_.load_models)));
    trainers_->RestoreStored();
    admission_.Open();
    readiness_.Tell(grpc_server_.get());
    readiness_.Set(true);
    control_->StartPolling(options_.repository_poll);
    spdlog::info("ready: gRPC on {}:{}, metrics on http://{}:{}/metrics", options_.listen,
                 grpc_server_->port(), options_.listen, metrics_server_->port());
    return WriteReadyFile();
  }

  bool Drain() {
    readiness_.Set(false);
    admission_.Close();
    spdlog::info("draining: {} requests in flight", admission_.in_flight());
    if (!admission_.WaitUntilIdle(options_.drain_timeout)) {
      spdlog::error("the drain timeout has passed with {} requests in flight",
                    admission_.in_flight());
      return false;
    }
    if (!admission_.WaitUntilReplied(std::min(kSlowReaders, options_.drain_timeout))) {
      spdlog::warn("replies that nobody reads are given up");
    }
    control_->Stop();
    grpc_server_->Shutdown(absl::Now() + kHangUp);
    trainers_->SaveAll();
    // Nothing writes to the data directory any more: another server may have it, before what else
    // this one has to end.
    trainers_.reset();
    data_dir_lock_.Close();
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
    if (!files.empty()) {
      reloader_ = std::make_unique<Reloader>(std::move(files));
    }
    return absl::OkStatus();
  }

  // Of the GPUs that the driver knows, if there is one.
  void ServeGpuMetrics() {
#ifdef BRAID_WITH_NVML
    absl::StatusOr<std::shared_ptr<GpuMetrics>> gpus = GpuMetrics::Open(kNvmlLibrary);
    if (gpus.ok()) {
      gpu_metrics_ = *std::move(gpus);
      metrics_server_->Add(gpu_metrics_);
    } else {
      spdlog::info("no metrics of GPUs: {}", std::string(gpus.status().message()));
    }
#endif
  }

  absl::Status OpenStorage() {
    std::unique_ptr<TrainerStorage> storage;
    if (!options_.data_dir.empty()) {
      absl::StatusOr<FileDescriptor> lock = LockDirectory(options_.data_dir);
      BRAID_RETURN_IF_ERROR(NameFlag("--data_dir", lock.status()));
      data_dir_lock_ = *std::move(lock);
      BRAID_ASSIGN_OR_RETURN(storage, TrainerStorage::Open(options_.data_dir));
    }
    BRAID_ASSIGN_OR_RETURN(
        publisher_, Publisher::Open(models_.get(), options_.model_repository, options_.data_dir));
    trainers_ = std::make_unique<TrainerRegistry>(
        TrainerServices{models_.get(), publisher_.get(), &metrics_}, std::move(storage),
        ReadStoredSpec);
    return absl::OkStatus();
  }

  void MakeControl() {
    auto loader = std::make_unique<ModelLoader>(
        ModelLoader::Options{options_.model_repository, ReadConfigFile, ParseConfigJson,
                             [this](const std::string& model) { publisher_->ServeStored(model); },
                             [this](const std::string& model, bool ready) {
                               grpc_server_->SetModelReady(model, ready);
                             }},
        models_.get());
    control_ = std::make_unique<ModelControl>(options_.model_control_mode, std::move(loader));
  }

  absl::Status WriteReadyFile() const {
    if (options_.ready_file.empty()) {
      return absl::OkStatus();
    }
    const std::string text =
        absl::StrCat("{\"grpc_port\":", grpc_server_->port(),
                     ",\"metrics_port\":", metrics_server_->port(), ",\"pid\":", getpid(), "}\n");
    return NameFlag("--ready_file", WriteFileAtomically(options_.ready_file, text));
  }

  // In the order of construction; what has threads comes last.
  const Options options_;
  const RealClock clock_;
  Metrics metrics_;
  Admission admission_;
  SharedRegions regions_;
  std::unique_ptr<TlsFiles> tls_;          // null: plaintext
  std::unique_ptr<AccessControl> access_;  // null: everybody may do everything
  std::unique_ptr<Reloader> reloader_;     // null: there is nothing to read again
  Readiness readiness_;
  std::unique_ptr<DevicePool> pool_;
  FileDescriptor data_dir_lock_{-1};
  std::unique_ptr<ServedModels> models_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<TrainerRegistry> trainers_;
  std::shared_ptr<prometheus::Collectable> gpu_metrics_;  // null: there is no NVML
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<ModelControl> control_;
  std::unique_ptr<GrpcServer> grpc_server_;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const Options& options) {
  auto parts = std::make_unique<Parts>(options);
  BRAID_RETURN_IF_ERROR(parts->Start());
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Server::~Server() = default;

bool Server::Drain() { return parts_->Drain(); }

}  // namespace braid
