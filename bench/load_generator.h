// Inference requests to a server over gRPC, as many as a C++ client can send: closed loop or open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace braid::bench {

struct LoadOptions {
  std::string server = "127.0.0.1:8001";
  std::string model = "mlp";
  std::string input = "x";
  // Of the one FP32 input, rows first.
  std::vector<int64_t> shape = {1, 784};
  // Connections, over which the requests in flight are dealt out.
  int connections = 1;
  // Closed loop: so many places, each of which sends again when its reply is there.
  int in_flight = 8;
  // Open loop, if not 0: requests/s, sent when their time has come, whatever has been replied.
  double rate = 0;
  // The run ends after so many requests, or, if 0, after so much time.
  int64_t requests = 0;
  absl::Duration time = absl::Seconds(1);
  // The input is read from system shared memory, which the server is told of first.
  bool shared_memory = false;
  // Shown with each request. Empty: none.
  std::string token = {};
  // The server's authority, in PEM. Empty: plaintext.
  std::string ca = {};
};

struct LoadReport {
  // Seconds from sending (open loop: from when it should have been sent) to the reply.
  std::vector<double> completed;
  // The same of requests that were refused with RESOURCE_EXHAUSTED.
  std::vector<double> refused;
  int64_t failed = 0;
  absl::Status first_error;
  double seconds = 0;
};

// Returns when every request is answered. An error if the server cannot be prepared.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options);

}  // namespace braid::bench
