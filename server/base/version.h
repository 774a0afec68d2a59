#pragma once

namespace braid {

// Of the whole project: CMakeLists.txt says it.
inline constexpr char kVersion[] = BRAID_VERSION;

}  // namespace braid
