// The memory that this process can come to have, as the kernel tells it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace braid {

// The bytes that are still to be had, plus those that the process has for itself, in memory or
// swapped out. To be had is what the machine has available and its free swap, or, if that is less,
// what a limit of the process's cgroup, or of one above it, leaves, where files that are only
// cached count as free. Touching memory does not change the sum. Where no file tells: more than any
// machine has.
//
// root: the directory of proc and sys, "/".
int64_t ReachableHostBytes(const std::filesystem::path& root);

}  // namespace braid
