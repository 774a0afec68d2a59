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

// More than any machine has, and to be added to. Version 1 of cgroups says a larger number.
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 2;

using Keys = std::array<const char*, 2>;

struct CgroupVersion {
  const char* root;
  const char* limit;
  const char* used;
  Keys cached;  // of memory.stat: what is given up before anything is killed
};
constexpr CgroupVersion kVersion1 = {"sys/fs/cgroup/memory",
                                     "memory.limit_in_bytes",
                                     "memory.usage_in_bytes",
                                     {"total_inactive_file", "total_active_file"}};
constexpr CgroupVersion kVersion2 = {
    "sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

// What the file begins with; nullopt if that is no number, such as "max".
std::optional<int64_t> Number(const Path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// The sum of the numbers behind `keys`; nullopt if the file does not have the first of them.
std::optional<int64_t> Sum(const Path& path, const Keys& keys) {
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

// What the limit of one cgroup leaves.
int64_t LeftIn(const Path& cgroup, const CgroupVersion& version) {
  const int64_t limit = Number(cgroup / version.limit).value_or(kUnlimited);
  if (limit >= kUnlimited) {
    return kUnlimited;
  }
  const int64_t used = Number(cgroup / version.used).value_or(0) -
                       Sum(cgroup / "memory.stat", version.cached).value_or(0);
  return std::max<int64_t>(limit - std::max<int64_t>(used, 0), 0);
}

// In `own` and all above it. In a container `own` may be its name outside: then there is only the
// uppermost directory, which is the container's own.
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
    // "4:cpu,memory:/path", of version 2 "0::/path".
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

// The sum, in a file that counts in KiB.
int64_t SumOfKib(const Path& path, const Keys& keys) {
  const std::optional<int64_t> sum = Sum(path, keys);
  return sum ? *sum * 1024 : kUnlimited;
}

}  // namespace

int64_t ReachableHostBytes(const std::filesystem::path& root) {
  // First: memory that goes back before the rest is read is then counted twice. Left out it would
  // refuse what fits.
  const int64_t own = SumOfKib(root / "proc/self/status", {"RssAnon:", "VmSwap:"});
  const int64_t machine = SumOfKib(root / "proc/meminfo", {"MemAvailable:", "SwapFree:"});
  return std::min(machine, LeftInCgroups(root)) + own;
}

}  // namespace braid
