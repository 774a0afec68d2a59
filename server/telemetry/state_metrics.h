// What is not counted but asked for at each scrape: how the server stands.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/telemetry/description.h"

namespace braid {

struct OwnedMemory {
  std::string owner;  // "models", "trainers", "allocator", "cache"
  int64_t bytes = 0;
};

struct DeviceState {
  std::string name;
  std::string kind;  // "cpu", "cuda"
  std::string gpu;   // as NVML counts it; empty: a CPU slot, or not known
  std::string uuid;  // the GPU's
  bool healthy = true;
  std::vector<OwnedMemory> memory = {};  // what is known of it
};

struct ServedVersionState {
  std::string model;
  int64_t version = 0;
};

struct ServerState {
  std::string version;
  int64_t requests = 0;       // in flight
  int64_t request_bytes = 0;  // in flight
  std::vector<ServedVersionState> served = {};
  std::vector<DeviceState> devices = {};
  int64_t running_trainers = 0;
  int64_t failed_trainers = 0;
};

// Thread-safe.
class StateMetrics final : public prometheus::Collectable {
 public:
  // `read` is called by scrapes, on their threads, one at a time; it holds up no request.
  explicit StateMetrics(std::function<ServerState()> read) : read_(std::move(read)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

  // All that may be collected.
  static const std::vector<MetricDescription>& Descriptions();

 private:
  const std::function<ServerState()> read_;
};

}  // namespace braid
