// Health of the server, the single source for health services, probes and ServerReady.
//
// It has a state for each service name of grpc.health.v1: "liveness" (the server works without a
// restart), "readiness" and "" (the server accepts requests), and each model's name (the model is
// served).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace braid {

inline constexpr char kLiveness[] = "liveness";
inline constexpr char kReadiness[] = "readiness";

// Returns true for the server's own names, which no model may have.
inline bool IsReservedHealthName(absl::string_view name) {
  return name == kLiveness || name == kReadiness;
}

// Receives changes of the health state. Called with Health's lock held, so the last call has the
// current state. It must neither block nor call Health.
class HealthListener {
 public:
  virtual ~HealthListener() = default;
  virtual void OnHealthChange(const std::string& name, bool serving) = 0;
};

// Owned by the server. Must outlive its listeners' registration. Thread-safe.
class Health {
 public:
  // Starts live and not ready.
  Health();

  // Notifies `listener` of all names now and of every change until it is removed.
  void Add(HealthListener* listener) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(HealthListener* listener) ABSL_LOCKS_EXCLUDED(mu_);

  void SetReady() ABSL_LOCKS_EXCLUDED(mu_);
  // `reason` completes "the server …", for example "is shutting down".
  void SetNotReady(absl::string_view reason) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the server neither live nor ready for good. `why` names the device.
  void MarkDeviceLost(absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  // Ignores models with a reserved name: they are not served.
  void SetModel(const std::string& model, bool ready) ABSL_LOCKS_EXCLUDED(mu_);

  // OK, or UNAVAILABLE with the reason.
  absl::Status liveness() const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status readiness() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Readiness() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotifyAll(HealthListener* listener) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotifyListeners() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::vector<HealthListener*> listeners_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);   // why a device is lost; OK if none is
  absl::Status ready_ ABSL_GUARDED_BY(mu_);  // readiness without regard to lost devices
  std::map<std::string, bool> models_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
