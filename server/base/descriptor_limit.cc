#include "server/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace braid {
namespace {

// Upper bound, because some libraries allocate memory for each possible descriptor.
constexpr rlim_t kMost = rlim_t{1} << 20;

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < std::min(limit.rlim_max, kMost)) {
    limit.rlim_cur = std::min(limit.rlim_max, kMost);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

int64_t DescriptorLimit() {
  rlimit limit = {};
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  return getrlimit(RLIMIT_NOFILE, &limit) == 0
             ? static_cast<int64_t>(std::min(limit.rlim_cur, static_cast<rlim_t>(kNone)))
             : kNone;
}

}  // namespace braid
