// Memory that this process can use, as reported by the kernel.
#pragma once

#include <cstdint>
#include <filesystem>

namespace braid {

// Returns the available bytes plus the bytes that the process has for itself, in memory or swapped
// out, so touching memory does not change the result. Available is the smaller of the machine's
// available memory and free swap and the room within the limits of the process's cgroup and its
// ancestors, where cached files count as free. If no limit can be read: more than any machine has.
//
// `root` contains proc and sys; it is "/" except in tests.
int64_t ReachableHostBytes(const std::filesystem::path& root);

}  // namespace braid
