// Requests to a remote service in parallel.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace braid {

// Calls work(0) to work(count - 1) on at most 8 threads of low priority, and waits for them. While
// they run, calls `watch` on the calling thread every 200 ms, and once at the end. Returns the
// first error of either, after which no further work starts.
absl::Status InParallel(size_t count, absl::FunctionRef<absl::Status(size_t)> work,
                        absl::FunctionRef<absl::Status()> watch);

}  // namespace braid
