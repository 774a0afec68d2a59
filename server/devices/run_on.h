// Fan out to workers and wait for all of them.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/devices/worker.h"

namespace braid {

// Runs `work(i)` on `workers[i]` for every i at the same time, each followed by the device's
// synchronization, and counts the time as `phase`. Waits for all, whatever fails; returns the first
// error in the order of the workers. Not to be called by a worker.
absl::Status RunOnEach(const std::vector<Worker*>& workers, Phase phase,
                       absl::FunctionRef<absl::Status(size_t)> work);

// `work()` as the calling thread's, with what LibTorch throws as a Status: RESOURCE_EXHAUSTED,
// naming the device that the thread computes for, for memory that is not to be had, else INTERNAL
// with the first line of its message. The only place that catches.
absl::Status CatchTorch(absl::FunctionRef<absl::Status()> work);

}  // namespace braid
