#include "server/telemetry/health.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace braid {

Health::Health() { SetNotReady("is starting"); }

void Health::Add(HealthListener* listener) {
  const absl::MutexLock lock(&mu_);
  listeners_.push_back(listener);
  TellAll(listener);
}

void Health::Remove(HealthListener* listener) {
  const absl::MutexLock lock(&mu_);
  listeners_.erase(std::remove(listeners_.begin(), listeners_.end(), listener), listeners_.end());
}

void Health::SetReady() {
  const absl::MutexLock lock(&mu_);
  ready_ = absl::OkStatus();
  Announce();
}

void Health::SetNotReady(absl::string_view does) {
  const absl::MutexLock lock(&mu_);
  ready_ = absl::UnavailableError(absl::StrCat("the server ", does));
  Announce();
}

void Health::LoseDevice(absl::string_view why) {
  const absl::MutexLock lock(&mu_);
  if (lost_.ok()) {
    lost_ = absl::UnavailableError(why);
  }
  Announce();
}

void Health::SetModel(const std::string& model, bool ready) {
  if (IsServersName(model)) {
    return;
  }
  const absl::MutexLock lock(&mu_);
  models_[model] = ready;
  for (HealthListener* listener : listeners_) {
    listener->Tell(model, ready && Readiness().ok());
  }
}

absl::Status Health::liveness() const {
  const absl::MutexLock lock(&mu_);
  return lost_;
}

absl::Status Health::readiness() const {
  const absl::MutexLock lock(&mu_);
  return Readiness();
}

absl::Status Health::Readiness() const { return lost_.ok() ? ready_ : lost_; }

void Health::TellAll(HealthListener* listener) const {
  const bool ready = Readiness().ok();
  listener->Tell(kLiveness, lost_.ok());
  listener->Tell(kReadiness, ready);
  listener->Tell("", ready);
  for (const auto& [model, serves] : models_) {
    listener->Tell(model, ready && serves);
  }
}

void Health::Announce() const {
  for (HealthListener* listener : listeners_) {
    TellAll(listener);
  }
}

}  // namespace braid
