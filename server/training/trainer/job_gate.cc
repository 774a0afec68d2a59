#include "server/training/trainer/job_gate.h"

#include <algorithm>

namespace braid {
namespace {

// A step of a millisecond waits for at most this many milliseconds.
constexpr double kWaitPerStep = 19;

}  // namespace

JobGate::Turn::Turn(JobGate& gate, const std::vector<std::string>& devices, bool of_job)
    : gate_(gate), devices_(devices), of_job_(of_job) {
  const absl::MutexLock lock(&gate_.mu_);
  if (of_job_) {
    for (absl::Time turn = gate_.NextTurnTime(devices_); turn > absl::Now();
         turn = gate_.NextTurnTime(devices_)) {
      gate_.client_ended_.WaitWithDeadline(&gate_.mu_, turn);
    }
  } else {
    for (const std::string& device : devices_) {
      ++gate_.uses_[device].clients;
    }
  }
  start_ = absl::Now();
}

JobGate::Turn::~Turn() {
  const absl::MutexLock lock(&gate_.mu_);
  const absl::Time now = absl::Now();
  for (const std::string& device : devices_) {
    Use& use = gate_.uses_[device];
    if (of_job_) {
      use.job_due = now + std::min((now - start_) * kWaitPerStep, kMaxWait);
    } else {
      --use.clients;
      use.client_ended = now;
    }
  }
  gate_.client_ended_.SignalAll();
}

absl::Time JobGate::NextTurnTime(const std::vector<std::string>& devices) const {
  absl::Time turn = absl::InfinitePast();
  for (const std::string& device : devices) {
    const auto it = uses_.find(device);
    if (it == uses_.end() || !devices_.contains(device)) {
      continue;
    }
    const Use& use = it->second;
    const absl::Time quiet =
        use.clients > 0 ? absl::InfiniteFuture() : use.client_ended + kQuietTime;
    turn = std::max(turn, std::min(quiet, use.job_due));
  }
  return turn;
}

}  // namespace braid
