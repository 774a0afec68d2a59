#include "server/rpc/arriving_limit.h"

#include <algorithm>

namespace braid {

std::vector<size_t> ArrivingLimit::TooMany(const std::vector<Connection>& connections,
                                           std::chrono::steady_clock::time_point now) {
  absl::erase_if(on_their_way_out_,
                 [&](const auto& ended) { return now - ended.second >= kPatience; });
  std::vector<size_t> most_first;
  int64_t total = 0;
  for (size_t i = 0; i < connections.size(); ++i) {
    if (!on_their_way_out_.contains(connections[i].id)) {
      most_first.push_back(i);
      total += connections[i].arriving;
    }
  }
  if (total <= most_) {
    since_.reset();
    return {};
  }
  since_ = since_.value_or(now);
  if (total <= kAtOnce * most_ && now - *since_ < kPatience) {
    return {};
  }
  std::stable_sort(most_first.begin(), most_first.end(), [&](size_t a, size_t b) {
    return connections[a].arriving > connections[b].arriving;
  });
  size_t ended = 0;
  while (total > most_) {
    const Connection& connection = connections[most_first[ended++]];
    total -= connection.arriving;
    on_their_way_out_[connection.id] = now;
  }
  most_first.resize(ended);
  return most_first;
}

}  // namespace braid
