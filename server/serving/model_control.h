// Decides when models are loaded and unloaded: at start, on request, or when the repository
// changes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/base/task_thread.h"
#include "server/serving/control_mode.h"
#include "server/serving/model_loader.h"

namespace braid {

// Thread-safe; owned by the server. Runs loads and unloads one at a time on its own thread.
class ModelControl {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  ModelControl(ControlMode mode, std::unique_ptr<ModelLoader> loader);
  ~ModelControl();

  // Loads the initial models. names: for explicit mode. Blocks. Call before the other methods.
  absl::Status Start(const std::vector<std::string>& names);
  // In poll mode, starts to check the repository every `period`.
  void StartPolling(absl::Duration period);
  // Stops after the current load. Call once.
  void Stop();

  // Load or unload on the control thread, which calls `done`. UNAVAILABLE unless the mode is
  // explicit.
  void Load(std::string name, std::optional<std::string> config, Done done);
  void Unload(std::string name, Done done);

 private:
  absl::Status CheckExplicit() const;

  const ControlMode mode_;
  const std::unique_ptr<ModelLoader> loader_;
  absl::Notification stop_;
  // The thread that uses the loader: poller_ in poll mode, else tasks_.
  std::thread poller_;
  std::optional<TaskThread> tasks_;
};

}  // namespace braid
