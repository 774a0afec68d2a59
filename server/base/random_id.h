// Text that nobody else has.
#pragma once

#include <string>

namespace braid {

// 32 hexadecimal digits.
std::string RandomId();

}  // namespace braid
