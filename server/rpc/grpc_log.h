// Where gRPC's own log goes.
#pragma once

#include "grpc/support/log.h"
#include "server/telemetry/log.h"

namespace braid {

// gRPC writes to stderr what its callers learn from a status anyway: from now on only where one
// looks for trouble. Before the first server.
inline void LogGrpcQuietly() {
  gpr_set_log_function(
      [](gpr_log_func_args* entry) { Log(LogModule::kRpc).debug("gRPC: {}", entry->message); });
}

}  // namespace braid
