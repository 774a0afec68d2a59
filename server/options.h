// All options of the server. flags.cc sets them from the command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/serving/control_mode.h"
#include "server/telemetry/log.h"

namespace braid {

struct Options {
  // Required: a model repository in Triton's layout: a directory, or "s3://bucket/prefix".
  std::string model_repository;
  // Decides which models of the repository are served.
  ControlMode model_control_mode = ControlMode::kNone;
  // Models to load at start in explicit mode; "*" for all.
  std::vector<std::string> load_models;
  // Exit if a model cannot be loaded at start.
  bool exit_on_error = false;
  // Interval between checks of the repository in poll mode.
  absl::Duration repository_poll = absl::Seconds(15);
  // Allowlist of model files, in the format of sha256sum. Empty: all files are allowed.
  std::string model_allowlist;
  // Shared libraries with operators for TorchScript models, in load order.
  std::vector<std::string> operator_libraries;
  // Directory for trainers, checkpoints and caches; created if missing. Empty: no storage.
  std::string data_dir;
  // Directories with datasets that clients may read. Relative paths of requests start at the
  // first in which they exist.
  std::vector<std::string> data_roots;
  // Directory of the datasets that clients upload, created if missing; becomes the last of
  // `data_roots` unless it is one. Empty: no uploads.
  std::string dataset_root;
  // Limit of the bytes of uploaded datasets. 0: no limit.
  int64_t dataset_quota = 0;
  // Directory of jobs' outputs; created if missing. Empty: `data_dir`/outputs.
  std::string output_root;
  // Directory of files with the metrics of jobs and trainers; created if missing. Empty: none.
  std::string tracking_dir;
  // Prefixes "s3://bucket/prefix" with data that clients may read and outputs that jobs may write.
  std::vector<std::string> s3_allow;
  // Limit of the bytes of tables that jobs have packed in `data_dir`/cache, and of the copies of
  // data in S3 in `data_dir`/s3.
  int64_t data_cache_bytes = int64_t{64} << 30;
  // Device slots: auto, cpu*N, cuda, cuda:I, cuda:I*N, separated by commas.
  std::string devices = "auto";
  // Intra-op threads per CPU slot. 0: the machine's cores divided by the CPU slots, at least 1.
  int cpu_threads = 0;
  // Share of device time for training while inference waits too, in [0, 0.9]. On a CPU, it is
  // between 4 % and a half.
  double training_share = 0.25;
  // Sum gradients between GPUs during the backward pass.
  bool overlap_reduction = false;

  // Use TF32 for float32 matrix products and convolutions on GPUs: faster, with about three decimal
  // digits.
  bool tf32 = false;
  // Use only deterministic algorithms. Operators without one fail.
  bool deterministic = false;

  // Address to listen on for gRPC and metrics: a host name or a numeric address.
  std::string listen = "127.0.0.1";
  // 0: any free port.
  int grpc_port = 8001;
  int metrics_port = 8002;
  // File for a Chrome trace of `profile_steps` training operations, after three for warm-up. Empty:
  // no profiling.
  std::string profile;
  int64_t profile_steps = 10;
  LogFormat log_format = LogFormat::kText;
  LogLevels log_levels = DefaultLogLevels();
  // Separate plaintext port for grpc.health.v1; nullopt: health is on the gRPC port only.
  std::optional<int> health_port;
  // File written atomically when the server is ready: {"grpc_port":…,"metrics_port":…,"pid":…}, and
  // "health_port" if there is one. Empty: none.
  std::string ready_file;

  // PEM files: the server's certificate and key (both or neither; empty: plaintext), and the
  // authorities for client certificates (empty: clients need none). Reloaded when they change.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  // Identities and roles by token and by client certificate. Reloaded when they change. Both empty:
  // no authentication.
  std::string auth_tokens;
  std::string auth_certificates;
  // Listen beyond loopback without authentication.
  bool allow_unauthenticated = false;
  // Accept tokens in plaintext beyond loopback, because a proxy terminates TLS.
  bool tls_terminated_in_front = false;

  // Limits of requests in flight. Beyond them a request fails with RESOURCE_EXHAUSTED. gRPC's
  // buffers may take another max_request_bytes.
  int64_t max_requests = 4096;
  size_t max_request_bytes = size_t{4} << 30;
  // Limits per client: an identity, or an address without authentication. 0: no limit.
  int64_t max_client_requests = 0;
  size_t max_client_request_bytes = 0;
  // Concurrent calls per connection; more wait in the client.
  int max_connection_streams = 1024;
  // Compressed messages. If both are false, they are accepted only if `listen` is loopback.
  bool accept_compression = false;
  bool refuse_compression = false;
  // Largest message received, after decompression. At most 2 GiB, a limit of protobuf.
  int max_message_bytes = std::numeric_limits<int>::max();
  // Trainers that may exist at the same time, in memory and on disk.
  int64_t max_trainers = 10'000;
  // Bytes per device beyond which idle trainers leave memory. nullopt: half of the device's memory.
  std::optional<int64_t> trainer_memory;
  // Jobs that run, and that wait or are paused, at the same time.
  int64_t max_running_jobs = 1;
  int64_t max_running_jobs_per_identity = 0;  // 0: no limit
  int64_t max_queued_jobs = 1000;
  // Time after which the records of ended jobs are removed.
  absl::Duration job_retention = absl::Hours(24 * 30);
  // Let clients register POSIX shared memory, which the server then reads and writes, and GPU
  // memory.
  bool allow_client_shared_memory = false;
  // Let clients with the role admin upload versions of models, which are code.
  bool allow_model_upload = false;
  // Largest upload of a version.
  int64_t max_upload_bytes = int64_t{64} << 30;
  // Age at which clients are asked to reconnect, so that a load balancer can redistribute them.
  absl::Duration max_connection_age = absl::InfiniteDuration();
  // Time that calls may continue after that.
  absl::Duration max_connection_age_grace = absl::InfiniteDuration();
  // Time without calls after which a connection is closed. Clients reconnect for the next call.
  absl::Duration max_connection_idle = absl::Minutes(30);
  // Time after SIGTERM during which requests are still accepted, while load balancers react.
  absl::Duration drain_delay = absl::ZeroDuration();
  // Time that SIGTERM then waits for requests in flight.
  absl::Duration drain_timeout = absl::Seconds(30);
};

}  // namespace braid
