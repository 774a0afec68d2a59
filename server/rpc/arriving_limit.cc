#include "server/rpc/arriving_limit.h"

#include <algorithm>
#include <numeric>

namespace braid {

std::vector<size_t> ArrivingLimit::TooMany(const std::vector<int64_t>& arriving,
                                           std::chrono::steady_clock::time_point now) {
  int64_t total = std::accumulate(arriving.begin(), arriving.end(), int64_t{0});
  if (total <= most_) {
    since_.reset();
    return {};
  }
  since_ = since_.value_or(now);
  if (total <= kAtOnce * most_ && now - *since_ < kPatience) {
    return {};
  }
  std::vector<size_t> most_first(arriving.size());
  std::iota(most_first.begin(), most_first.end(), size_t{0});
  std::stable_sort(most_first.begin(), most_first.end(),
                   [&](size_t a, size_t b) { return arriving[a] > arriving[b]; });
  size_t ended = 0;
  while (total > most_) {
    total -= arriving[most_first[ended++]];
  }
  most_first.resize(ended);
  return most_first;
}

}  // namespace braid
