// How the server is: what health services, probes and ServerReady say comes from here alone.
//
// It says so of names, grpc.health.v1's: "liveness", whether the server can go on without a
// restart; "readiness", and "" for the server as a whole, whether it wants requests; and each
// model's, whether it serves that one now.
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

// Whether it says so of the server itself by this name, which no model can then have.
inline bool IsServersName(absl::string_view name) {
  return name == kLiveness || name == kReadiness;
}

// Who wants to be told. It is told under a lock, so that the last state is the last it hears: it
// neither blocks nor calls Health.
class HealthListener {
 public:
  virtual ~HealthListener() = default;
  virtual void Tell(const std::string& name, bool serving) = 0;
};

// Thread-safe. Outlives its listeners' time with it.
class Health {
 public:
  // Live, but not ready yet.
  Health();

  // Tells `listener` of all names now, and of what changes until it is removed.
  void Add(HealthListener* listener) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(HealthListener* listener) ABSL_LOCKS_EXCLUDED(mu_);

  void SetReady() ABSL_LOCKS_EXCLUDED(mu_);
  // Not ready, as the server `does` something else, such as "is shutting down".
  void SetNotReady(absl::string_view does) ABSL_LOCKS_EXCLUDED(mu_);
  // Neither live nor ready, for good, whatever else is said: `why` has the device's name.
  void LoseDevice(absl::string_view why) ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is said of a model that has one of the server's own names: it is not served.
  void SetModel(const std::string& model, bool ready) ABSL_LOCKS_EXCLUDED(mu_);

  // OK, or UNAVAILABLE with the reason.
  absl::Status liveness() const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status readiness() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Readiness() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellAll(HealthListener* listener) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Announce() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::vector<HealthListener*> listeners_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);   // OK: nothing is
  absl::Status ready_ ABSL_GUARDED_BY(mu_);  // but for what is lost
  std::map<std::string, bool> models_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
