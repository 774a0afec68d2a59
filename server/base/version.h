// Version of the project, from CMakeLists.txt.
#pragma once

namespace braid {

inline constexpr char kVersion[] = BRAID_VERSION;

}  // namespace braid
