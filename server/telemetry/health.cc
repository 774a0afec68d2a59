#include "server/telemetry/health.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace braid {

Health::Health() { SetNotReady("is starting"); }

void Health::Add(HealthListener* listener) {
  const absl::MutexLock lock(&mu_);
  listeners_.push_back(listener);
  NotifyAll(listener);
}

void Health::Remove(HealthListener* listener) {
  const absl::MutexLock lock(&mu_);
  listeners_.erase(std::remove(listeners_.begin(), listeners_.end(), listener), listeners_.end());
}

void Health::SetReady() {
  const absl::MutexLock lock(&mu_);
  ready_ = absl::OkStatus();
  NotifyListeners();
}

void Health::SetNotReady(absl::string_view reason) {
  const absl::MutexLock lock(&mu_);
  ready_ = absl::UnavailableError(absl::StrCat("the server ", reason));
  NotifyListeners();
}

void Health::MarkDeviceLost(absl::string_view why) {
  const absl::MutexLock lock(&mu_);
  if (lost_.ok()) {
    lost_ = absl::UnavailableError(why);
  }
  NotifyListeners();
}

void Health::SetModel(const std::string& model, bool ready) {
  if (IsReservedHealthName(model)) {
    return;
  }
  const absl::MutexLock lock(&mu_);
  models_[model] = ready;
  for (HealthListener* listener : listeners_) {
    listener->OnHealthChange(model, ready && Readiness().ok());
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

void Health::NotifyAll(HealthListener* listener) const {
  const bool ready = Readiness().ok();
  listener->OnHealthChange(kLiveness, lost_.ok());
  listener->OnHealthChange(kReadiness, ready);
  listener->OnHealthChange("", ready);
  for (const auto& [model, serves] : models_) {
    listener->OnHealthChange(model, ready && serves);
  }
}

void Health::NotifyListeners() const {
  for (HealthListener* listener : listeners_) {
    NotifyAll(listener);
  }
}

}  // namespace braid
