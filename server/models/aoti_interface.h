// What an AOTInductor package takes and returns, as its own source code tells: the compiled code
// checks nothing of what it is given.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/models/package_interface.h"

namespace braid {

// From the package's wrapper.cpp. FAILED_PRECONDITION if it does not say enough, or wants an input
// that is not laid out row by row.
absl::StatusOr<PackageInterface> ParseAotiInterface(absl::string_view source);

}  // namespace braid
