// What an AOTInductor package takes and returns, as its own source code tells: the compiled code
// checks nothing of what it is given.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/models/archive/package_interface.h"

namespace braid {

// From the package's wrapper.cpp. FAILED_PRECONDITION if it does not say enough, or wants an input
// that is not laid out row by row.
absl::StatusOr<PackageInterface> ParseAotiInterface(absl::string_view source);

// Sets the ranges of indices that braid.export has written into the package's `metadata`, if it
// has. FAILED_PRECONDITION if they are none.
absl::Status ReadAotiMetadataRanges(absl::string_view metadata, std::vector<PackageInput>* inputs);

// FAILED_PRECONDITION if the package, by its wrapper.cpp, writes to its parameters or buffers: it
// would give something else each time.
absl::Status CheckNoMutatedConstants(absl::string_view source);

// Operators that a package was compiled with in training mode, which is dropout, by the names of
// the kernels in its `sources`.
std::set<std::string> TrainingKernels(absl::string_view sources);

// FAILED_PRECONDITION if the `source` of a package's kernels looks at indices where several threads
// run, which it must not leave by an exception: an index out of range would end the process.
absl::Status CheckNoParallelIndexChecks(absl::string_view source);

}  // namespace braid
