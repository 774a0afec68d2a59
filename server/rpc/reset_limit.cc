#include "server/rpc/reset_limit.h"

#include <algorithm>
#include <utility>

namespace braid {
namespace {

// Connections are looked at when so many calls more have not succeeded on all together.
constexpr int64_t kWorthLooking = 512;

int64_t Unsuccessful(const std::vector<CountedServer>& servers) {
  int64_t total = 0;
  for (const CountedServer& server : servers) {
    total += server.calls.unsuccessful();
  }
  return total;
}

}  // namespace

bool RecentResets::TooMany(int64_t total, int64_t fresh, std::chrono::duration<double> since,
                           int streams) {
  fresh = std::min(fresh, total - std::exchange(total_, total));
  recent_ = std::max(0.0, recent_ - kEachSecond * since.count() + static_cast<double>(fresh));
  return recent_ > kAtOnce + streams;
}

bool ResetLimit::WorthLooking(const std::vector<CountedServer>& servers) {
  const int64_t total = Unsuccessful(servers);
  const bool worth = total - total_ >= kWorthLooking;
  if (!worth) {
    total_ = std::min(total_, total);
  }
  return worth;
}

std::vector<CountedConnection> ResetLimit::TooMany(
    const std::vector<CountedServer>& servers, const std::vector<CountedConnection>& connections) {
  const int64_t total = Unsuccessful(servers);
  const int64_t fresh = total - std::exchange(total_, total);
  const auto now = std::chrono::steady_clock::now();
  const auto since = now - std::exchange(looked_, now);
  // Of connections that are gone nothing is kept.
  const auto before = std::exchange(connections_, {});
  std::vector<CountedConnection> too_many;
  for (const CountedConnection& connection : connections) {
    const auto known = before.find(connection.id);
    RecentResets& resets = connections_[connection.id];
    resets = known == before.end() ? RecentResets() : known->second;
    if (resets.TooMany(connection.streams.unsuccessful(), fresh, since, streams_)) {
      too_many.push_back(connection);
    }
  }
  return too_many;
}

}  // namespace braid
