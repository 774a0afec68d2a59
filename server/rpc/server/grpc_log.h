// Where gRPC's own log goes.
#pragma once

#include <string>

#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "server/telemetry/log.h"

namespace braid {

// gRPC, and protobuf when a client sends what is none, write to stderr what its callers learn from
// a status anyway: from now on only where one looks for trouble. Before the first server.
inline void LogGrpcQuietly() {
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& message) {
        Log(LogModule::kRpc).debug("protobuf: {}", message);
      });
  gpr_set_log_function(
      [](gpr_log_func_args* entry) { Log(LogModule::kRpc).debug("gRPC: {}", entry->message); });
}

}  // namespace braid
