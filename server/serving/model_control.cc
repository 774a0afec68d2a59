#include "server/serving/model_control.h"

#include <pthread.h>

#include <utility>

#include "server/base/status.h"

namespace braid {

ModelControl::ModelControl(ControlMode mode, std::unique_ptr<ModelLoader> loader)
    : mode_(mode), loader_(std::move(loader)) {
  if (mode_ == ControlMode::kExplicit) {
    tasks_.emplace("models");
  }
}

ModelControl::~ModelControl() {
  if (!stop_.HasBeenNotified()) {
    Stop();
  }
}

absl::Status ModelControl::Start(const std::vector<std::string>& names) {
  return mode_ == ControlMode::kExplicit ? loader_->LoadNamed(names) : loader_->LoadAll();
}

void ModelControl::StartPolling(absl::Duration period) {
  if (mode_ != ControlMode::kPoll) {
    return;
  }
  poller_ = std::thread([this, period] {
    while (!stop_.WaitForNotificationWithTimeout(period)) {
      loader_->Poll();
    }
  });
  pthread_setname_np(poller_.native_handle(), "models");
}

void ModelControl::Stop() {
  stop_.Notify();
  if (poller_.joinable()) {
    poller_.join();
  }
  tasks_.reset();
}

absl::Status ModelControl::CheckExplicit() const {
  if (mode_ == ControlMode::kExplicit) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      "explicit model load / unload is not allowed: this server was started without "
      "--model_control_mode=explicit");
}

void ModelControl::Load(std::string name, std::optional<std::string> config, Done done) {
  if (absl::Status status = CheckExplicit(); !status.ok()) {
    done(std::move(status));
    return;
  }
  tasks_->Post([this, name = std::move(name), config = std::move(config),
                done = std::move(done)]() mutable { done(loader_->Load(name, config)); });
}

void ModelControl::Unload(std::string name, Done done) {
  if (absl::Status status = CheckExplicit(); !status.ok()) {
    done(std::move(status));
    return;
  }
  tasks_->Post([this, name = std::move(name), done = std::move(done)]() mutable {
    done(loader_->Unload(name));
  });
}

}  // namespace braid
