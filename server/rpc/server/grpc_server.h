// The gRPC server: all services on one port, with health and reflection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/access/access_control.h"
#include "server/access/tls_files.h"
#include "server/admission/admission.h"
#include "server/admission/open_streams.h"
#include "server/data/open_data_source.h"
#include "server/datasets/dataset_store.h"
#include "server/decode/decode_threads.h"
#include "server/devices/device_slot_view.h"
#include "server/jobs/jobs.h"
#include "server/rpc/server/connection_limits.h"
#include "server/serving/model_control.h"
#include "server/serving/served_models.h"
#include "server/shared_memory/shared_regions.h"
#include "server/telemetry/health.h"
#include "server/telemetry/metrics.h"
#include "server/training/trainer/publisher.h"
#include "server/training/trainer/trainer_registry.h"

namespace braid {

// Thread-safe.
class GrpcServer {
 public:
  struct Options {
    std::string host;
    int port = 0;  // 0: any free port
    ConnectionLimits connections;
    // All pointers outlive the server.
    ServedModels* models = nullptr;
    ModelControl* control = nullptr;
    TrainerRegistry* trainers = nullptr;
    Publisher* publisher = nullptr;
    int64_t max_upload_bytes = 0;  // 0: no uploads
    Admission* admission = nullptr;
    OpenStreams* streams = nullptr;
    Metrics* metrics = nullptr;
    Health* health = nullptr;
    SharedRegions* regions = nullptr;  // null: shared memory of clients is disabled
    DecodeThreads* decode_threads = nullptr;
    const TlsFiles* tls = nullptr;          // null: plaintext
    const AccessControl* access = nullptr;  // null: no authentication
    ListSlots list_slots;
    DataDirectories data;
    DatasetStore* datasets = nullptr;  // null: no uploads of datasets
    const Jobs* jobs = nullptr;
  };

  // Starts to listen. UNAVAILABLE if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(const Options& options);
  // Calls Shutdown().
  ~GrpcServer();

  // Stops accepting connections; existing ones stay.
  void StopListening();
  // Waits until the clients' machines have acknowledged all replies. False after `timeout`.
  bool WaitUntilDelivered(absl::Duration timeout);
  // Closes all connections, so that open calls fail with UNAVAILABLE, which clients retry. gRPC's
  // own shutdown would send CANCELLED, and wait 20 seconds for clients that do not read.
  void Shutdown();

  int port() const;

 private:
  class Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace braid
