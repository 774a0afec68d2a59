// Fan out to workers, or to threads beside them, and wait for all.
#pragma once

#include <cstddef>
#include <cstdint>
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

// The same `times` times, at least once, on each until it fails there. Each run is a task, posted
// when the one before has ended: what else a worker has to do comes in between, by its turns.
absl::Status RepeatOnEach(const std::vector<Worker*>& workers, Phase phase, int64_t times,
                          absl::FunctionRef<absl::Status(size_t)> work);

// As RunOnEach(), but each on a thread of its own that has entered the worker's device, while the
// worker does what it has to do: for what takes long and computes little, such as to read a file
// and to copy it to the device. It is no time of the worker's, so no phase counts it.
absl::Status RunBesideEach(const std::vector<Worker*>& workers,
                           absl::FunctionRef<absl::Status(size_t)> work);

// `work()` on the calling thread, which has entered the worker's device or does so in it, then the
// device's synchronization: after an error, too, what was begun has to end. UNAVAILABLE, whatever
// came of it, if the device is lost; it runs nothing if that is known.
absl::Status RunFor(Worker& worker, absl::FunctionRef<absl::Status()> work);

// `work()` as the calling thread's, with what LibTorch throws as a Status: RESOURCE_EXHAUSTED,
// naming the device that the thread computes for, for memory that is not to be had, else INTERNAL
// with the first line of its message. The only place that catches.
absl::Status CatchTorch(absl::FunctionRef<absl::Status()> work);

}  // namespace braid
