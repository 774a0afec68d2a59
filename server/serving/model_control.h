// When models are loaded and unloaded: at the start alone, on request, or when the repository
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

// Thread-safe. Loads and unloads are done one after the other on a thread of its own.
class ModelControl {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  ModelControl(ControlMode mode, std::unique_ptr<ModelLoader> loader);
  ~ModelControl();

  // Loads what the mode says; `names`: those of the explicit mode. Blocks. Before everything else.
  absl::Status Start(const std::vector<std::string>& names);
  // In the poll mode: looks at the repository every `period` from now on.
  void StartPolling(absl::Duration period);
  // Ends after what is being loaded; to be called once.
  void Stop();

  // ModelLoader's, answered from its thread. UNAVAILABLE unless the mode is explicit.
  void Load(std::string name, std::optional<std::string> config, Done done);
  void Unload(std::string name, Done done);

 private:
  absl::Status CheckExplicit() const;

  const ControlMode mode_;
  const std::unique_ptr<ModelLoader> loader_;
  absl::Notification stop_;
  // In the poll mode, the thread that uses the loader; else `tasks_` is.
  std::thread poller_;
  std::optional<TaskThread> tasks_;
};

}  // namespace braid
