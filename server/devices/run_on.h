// Functions that run work on workers or on load threads and wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/devices/worker.h"

namespace braid {

// Runs `work(i)` on `workers[i]` for every i at the same time, synchronizes the devices and adds
// the time to `phase`. Blocks until all have ended, even if some fail. Returns the first error in
// the order of `workers`. Must not be called on a worker's thread.
absl::Status RunOnEach(const std::vector<Worker*>& workers, Phase phase,
                       absl::FunctionRef<absl::Status(size_t)> work);

// Same, `times` times (at least once) or until it fails. Each run is a task of its own, so other
// work of the worker runs in between.
absl::Status RepeatOnEach(const std::vector<Worker*>& workers, Phase phase, int64_t times,
                          absl::FunctionRef<absl::Status(size_t)> work);

// Same as RunOnEach(), but each `work(i)` runs on a new thread that has entered the device for
// loading (Worker::EnterForLoading()), so the worker keeps serving. For work that takes long and
// computes little, such as reading a file and copying it to the device. Counted in no phase.
absl::Status RunOnLoadThreads(const std::vector<Worker*>& workers,
                              absl::FunctionRef<absl::Status(size_t)> work);

// Runs `work()` on the calling thread, which has entered the worker's device or does so in `work`,
// and synchronizes the device, even after an error. UNAVAILABLE if the device is lost, before or
// after.
absl::Status RunAndSynchronize(Worker& worker, absl::FunctionRef<absl::Status()> work);

// Runs `work()` on the calling thread and turns LibTorch's exceptions into a Status: out-of-memory
// errors into RESOURCE_EXHAUSTED that names the thread's device, all others into INTERNAL with the
// first line of the message.
absl::Status CatchTorch(absl::FunctionRef<absl::Status()> work);

}  // namespace braid
