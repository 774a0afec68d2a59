#include "server/devices/host_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace braid {
namespace {

using Path = std::filesystem::path;

// More than any machine has, but small enough to be added to. Version 1 of cgroups reports a larger
// number if there is no limit.
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 2;

using Keys = std::array<const char*, 2>;

struct CgroupVersion {
  const char* root;
  const char* limit;
  const char* used;
  Keys cached;  // keys in memory.stat of memory that the kernel can reclaim
};
constexpr CgroupVersion kVersion1 = {"sys/fs/cgroup/memory",
                                     "memory.limit_in_bytes",
                                     "memory.usage_in_bytes",
                                     {"total_inactive_file", "total_active_file"}};
constexpr CgroupVersion kVersion2 = {
    "sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

// Reads the number at the start of a file; nullopt if there is none, for example "max".
std::optional<int64_t> ReadNumber(const Path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// Reads the sum of the values of `keys`; nullopt if the file lacks the first key.
std::optional<int64_t> ReadSum(const Path& path, const Keys& keys) {
  std::ifstream file(path);
  int64_t sum = 0;
  bool has_first = false;
  size_t found = 0;
  for (std::string word; found < keys.size() && file >> word;) {
    int64_t value = 0;
    if (absl::c_linear_search(keys, word) && file >> value) {
      sum += value;
      has_first = has_first || word == keys.front();
      ++found;
    }
  }
  return has_first ? std::optional(sum) : std::nullopt;
}

// Returns the bytes below the limit of one cgroup.
int64_t LeftIn(const Path& cgroup, const CgroupVersion& version) {
  const int64_t limit = ReadNumber(cgroup / version.limit).value_or(kUnlimited);
  if (limit >= kUnlimited) {
    return kUnlimited;
  }
  const int64_t used = ReadNumber(cgroup / version.used).value_or(0) -
                       ReadSum(cgroup / "memory.stat", version.cached).value_or(0);
  return std::max<int64_t>(limit - std::max<int64_t>(used, 0), 0);
}

// Returns the bytes below the limits of the cgroup `own` and its ancestors. In a container, `own`
// may be its name on the host: then only the top directory exists, which is the container's.
int64_t LeftAlong(const Path& root, const Path& own, const CgroupVersion& version) {
  Path cgroup = root / version.root;
  int64_t left = LeftIn(cgroup, version);
  for (const Path& name : own.relative_path()) {
    cgroup /= name;
    left = std::min(left, LeftIn(cgroup, version));
  }
  return left;
}

int64_t LeftInCgroups(const Path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  int64_t left = kUnlimited;
  for (std::string line; std::getline(file, line);) {
    // Version 1: "4:cpu,memory:/path". Version 2: "0::/path".
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) {
      continue;
    }
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (fields[1].empty()) {
      left = std::min(left, LeftAlong(root, fields[2], kVersion2));
    } else if (absl::c_linear_search(controllers, "memory")) {
      left = std::min(left, LeftAlong(root, fields[2], kVersion1));
    }
  }
  return left;
}

// Reads a sum in bytes from a file with values in KiB.
int64_t SumOfKib(const Path& path, const Keys& keys) {
  const std::optional<int64_t> sum = ReadSum(path, keys);
  return sum ? *sum * 1024 : kUnlimited;
}

}  // namespace

int64_t ReachableHostBytes(const std::filesystem::path& root) {
  // Read first: memory that is freed in between is counted twice, not missed. Missing it would
  // refuse tensors that fit.
  const int64_t own = SumOfKib(root / "proc/self/status", {"RssAnon:", "VmSwap:"});
  const int64_t machine = SumOfKib(root / "proc/meminfo", {"MemAvailable:", "SwapFree:"});
  return std::min(machine, LeftInCgroups(root)) + own;
}

}  // namespace braid
