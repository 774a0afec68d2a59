// Whether a server can listen on an address, and who could reach it there.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace braid {

// `host`: a name or number, IPv6 in brackets. INVALID_ARGUMENT if it is no address of this machine.
absl::Status CheckLocalAddress(const std::string& host);

// Whether only this machine reaches it: all that `host`, as above, stands for is loopback.
bool IsLoopback(const std::string& host);

}  // namespace braid
