// Checks of listening addresses.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace braid {

// Checks that `host`, a name or an address (IPv6 in brackets), belongs to this machine.
// INVALID_ARGUMENT if it does not.
absl::Status CheckLocalAddress(const std::string& host);

// Returns true if all addresses of `host` are loopback addresses.
bool IsLoopback(const std::string& host);

}  // namespace braid
