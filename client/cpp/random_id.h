// Random identifiers. Thread-safe.
#pragma once

#include <string>

namespace braid::client {

// Returns 128 random bits as 32 hexadecimal digits.
std::string RandomId();

}  // namespace braid::client
