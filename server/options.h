// Every knob of the server, as its flags say.
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
  // Required: a folder in Triton's layout.
  std::string model_repository;
  // Which of its models are served.
  ControlMode model_control_mode = ControlMode::kNone;
  // In the explicit mode: those that are loaded at the start; '*': all.
  std::vector<std::string> load_models;
  // A model that cannot be loaded at the start ends the server.
  bool exit_on_error = false;
  // In the poll mode: how often the repository is looked at.
  absl::Duration repository_poll = absl::Seconds(15);
  // Files of the repository that may be loaded, as sha256sum prints them. Empty: all of them.
  std::string model_allowlist;
  // Shared libraries with operators for TorchScript models, loaded in their order.
  std::vector<std::string> operator_libraries;
  // Where the server keeps what outlives it. Made if it is not there. Empty: nothing is kept.
  std::string data_dir;
  // Device slots: auto, cpu*N, cuda, cuda:I, cuda:I*N, separated by commas.
  std::string devices = "auto";
  // Intra-op threads of each CPU slot. 0: the machine's cores divided by the CPU slots, at least 1.
  int cpu_threads = 0;
  // Of the time for which training and inference both want a device, training's part, in [0, 0.9].
  double training_share = 0.25;
  // Sum gradients between GPUs while the backward pass goes on.
  bool overlap_reduction = false;

  // float32 matrix products and convolutions on GPUs may round their inputs to TF32: faster, three
  // decimal digits.
  bool tf32 = false;
  // Only algorithms that give the same bits every time; an operator that has none fails.
  bool deterministic = false;

  // The address that gRPC and metrics bind to. A host's name or number; not beyond loopback unless
  // told.
  std::string listen = "127.0.0.1";
  // 0: a free one.
  int grpc_port = 8001;
  int metrics_port = 8002;
  // Where a Chrome trace of the first `profile_steps` training operations, but for a few that warm
  // up, is written. Empty: nothing is profiled.
  std::string profile;
  int64_t profile_steps = 10;
  LogFormat log_format = LogFormat::kText;
  LogLevels log_levels = DefaultLogLevels();
  // grpc.health.v1 in plaintext, for probes; nullopt: on the gRPC port alone.
  std::optional<int> health_port;
  // Written atomically when the server is ready: {"grpc_port":…,"metrics_port":…,"pid":…}, and
  // "health_port" if there is one. Empty: not.
  std::string ready_file;

  // In PEM: the server's certificate and key, both or neither, and the authorities of whom each
  // client has to show a certificate. Read again when they change. Empty: plaintext; no certificate
  // of clients.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  // Who may do what: by token, by client certificate. Read again when they change. Both empty:
  // everybody may do everything.
  std::string auth_tokens;
  std::string auth_certificates;
  // Without the above: to listen beyond loopback all the same.
  bool allow_unauthenticated = false;
  // Beyond loopback: tokens may come in plaintext, as something in front of the server has TLS.
  bool tls_terminated_in_front = false;

  // What may be in flight; beyond it a request is refused at once with RESOURCE_EXHAUSTED. Messages
  // that are on their way, whoever sends them, may take as much as max_request_bytes again.
  int64_t max_requests = 4096;
  size_t max_request_bytes = size_t{4} << 30;
  // The same of one client: an identity, or else an address. 0: no limit but those above.
  int64_t max_client_requests = 0;
  size_t max_client_request_bytes = 0;
  // What one connection may have open at once; more wait on the client's side.
  int max_connection_streams = 1024;
  // Compressed messages. With neither, they are accepted if `listen` is loopback.
  bool accept_compression = false;
  bool refuse_compression = false;
  // Of a request, or of a message of a stream; at most 2 GiB, as protobuf has it.
  int max_message_bytes = std::numeric_limits<int>::max();
  // At work at once: each has threads, replicas and series of metrics of its own.
  int64_t max_trainers = 64;
  // Whether clients may have the server read and write POSIX shared memory that its user may open.
  bool allow_client_shared_memory = false;
  // After which a client is asked to connect anew, so that it finds other servers.
  absl::Duration max_connection_age = absl::InfiniteDuration();
  // How long its calls may then go on.
  absl::Duration max_connection_age_grace = absl::InfiniteDuration();
  // Without a call; then it is closed, and its client connects anew for the next one.
  absl::Duration max_connection_idle = absl::Minutes(30);
  // How long requests are still taken after SIGTERM, while load balancers notice.
  absl::Duration drain_delay = absl::ZeroDuration();
  // How long SIGTERM waits for what is in flight, then.
  absl::Duration drain_timeout = absl::Seconds(30);
};

}  // namespace braid
