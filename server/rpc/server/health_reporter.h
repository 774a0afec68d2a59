// Forwards changes of Health to the grpc.health.v1 service of a port.
#pragma once

#include <string>

#include "grpcpp/health_check_service_interface.h"
#include "server/telemetry/health.h"

namespace braid {

// Registered from construction to destruction. `health` and `service` outlive it. Thread-safe.
class HealthReporter final : public HealthListener {
 public:
  HealthReporter(Health* health, grpc::HealthCheckServiceInterface* service)
      : health_(health), service_(service) {
    health_->Add(this);
  }
  ~HealthReporter() override { health_->Remove(this); }
  HealthReporter(const HealthReporter&) = delete;
  HealthReporter& operator=(const HealthReporter&) = delete;

  void OnHealthChange(const std::string& name, bool serving) override {
    service_->SetServingStatus(name, serving);
  }

 private:
  Health* const health_;
  grpc::HealthCheckServiceInterface* const service_;
};

}  // namespace braid
