// Unique identifiers.
#pragma once

#include <string>

namespace braid {

// Returns 32 random hexadecimal digits.
std::string RandomId();

}  // namespace braid
