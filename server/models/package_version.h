// Rule for packages that another release of PyTorch exported than the server runs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/models/archive_check.h"
#include "server/models/self_test.h"

namespace braid {

// Checks that this server computes what the release `exported_with` computed, which exported the
// package at `path`: a no-op for the server's own release. Otherwise the package's self-test has to
// pass on `device`, the kind of device that the package is for; a package without one is accepted
// with a warning in the log. FAILED_PRECONDITION if the self-test is damaged or fails,
// RESOURCE_EXHAUSTED if memory does not suffice for it. Call it on a thread that has entered
// `device`.
absl::Status CheckPackageVersion(const std::string& path, const std::string& exported_with,
                                 const TestedModel& model, c10::Device device,
                                 ModelArchive* archive);

}  // namespace braid
