// What ModelStatistics says of a version.
#pragma once

#include "inference/grpc_service.pb.h"
#include "server/batching/request_queue.h"

namespace braid {

// Triton's fields with its meanings; durations in nanoseconds.
void FillStatistics(const RequestQueue& queue, inference::ModelStatistics* message);

}  // namespace braid
