// Redirects the logs of gRPC and protobuf.
#pragma once

#include <string>

#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "server/telemetry/log.h"

namespace braid {

// Logs messages of gRPC and protobuf at debug level instead of stderr: clients get the same errors
// as a status. Call before creating the first server.
inline void RedirectGrpcLog() {
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& message) {
        Log(LogModule::kRpc).debug("protobuf: {}", message);
      });
  gpr_set_log_function(
      [](gpr_log_func_args* entry) { Log(LogModule::kRpc).debug("gRPC: {}", entry->message); });
}

}  // namespace braid
