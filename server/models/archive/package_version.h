// Checks packages that were exported with another PyTorch release.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/models/archive/model_archive.h"
#include "server/models/archive/self_test.h"

namespace braid {

// Runs the self-test of a package exported with `exported_with`, the one at `path`. A no-op for the
// server's own release. A package without a self-test is accepted with a warning in the log.
//
// describe: called only if there is a self-test to run.
// device: of the package's device type; current on the calling thread.
// FAILED_PRECONDITION if the self-test is damaged or fails, RESOURCE_EXHAUSTED if there is not
// enough memory to run it.
absl::Status CheckPackageVersion(const std::string& path, const std::string& exported_with,
                                 absl::FunctionRef<TestedModel()> describe, c10::Device device,
                                 ModelArchive* archive);

}  // namespace braid
