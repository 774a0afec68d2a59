// Reads the inputs and outputs of an AOTInductor package from its generated source code. The
// compiled code does not check its inputs.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/models/archive/package_interface.h"

namespace braid {

// Parses the package's wrapper.cpp. FAILED_PRECONDITION if it has no description of the inputs, or
// if an input is not row-major contiguous.
absl::StatusOr<PackageInterface> ParseAotiInterface(absl::string_view source);

// Sets the ranges of indices that braid.export wrote to the package's `metadata`, if any.
// FAILED_PRECONDITION if they are invalid.
absl::Status ReadAotiMetadataRanges(absl::string_view metadata, std::vector<PackageInput>* inputs);

// FAILED_PRECONDITION if the package modifies its parameters or buffers, according to its
// wrapper.cpp: results would depend on earlier requests.
absl::Status CheckNoMutatedConstants(absl::string_view source);

// Returns the operators that a package was compiled with in training mode, by the names of the
// kernels in its `sources`. Finds dropout.
std::set<std::string> TrainingKernels(absl::string_view sources);

// FAILED_PRECONDITION if kernels in `source` check indices inside of parallel regions. An exception
// must not leave such a region, so an index out of range would end the process.
absl::Status CheckNoParallelIndexChecks(absl::string_view source);

}  // namespace braid
