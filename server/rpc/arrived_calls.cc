#include "server/rpc/arrived_calls.h"

#include <utility>

namespace braid {

ArrivedCalls& ArrivedCalls::OfProcess() {
  static auto* const kCalls = new ArrivedCalls;
  return *kCalls;
}

void ArrivedCalls::Add(const std::string& peer) {
  const absl::MutexLock lock(&mu_);
  ++total_;
  ++of_peer_[peer];
}

void ArrivedCalls::Remove(const std::string& peer) {
  const absl::MutexLock lock(&mu_);
  --total_;
  if (const auto found = of_peer_.find(peer); --found->second == 0) {
    of_peer_.erase(found);
  }
}

int64_t ArrivedCalls::total() const {
  const absl::MutexLock lock(&mu_);
  return total_;
}

int64_t ArrivedCalls::Of(absl::string_view peer) const {
  const absl::MutexLock lock(&mu_);
  const auto found = of_peer_.find(peer);
  return found == of_peer_.end() ? 0 : found->second;
}

ArrivedCall::ArrivedCall(std::string peer) : peer_(std::move(peer)) {
  ArrivedCalls::OfProcess().Add(peer_);
}

ArrivedCall::~ArrivedCall() { ArrivedCalls::OfProcess().Remove(peer_); }

}  // namespace braid
