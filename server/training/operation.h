// What a client asks of a trainer, and what it is told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/parallel/mode.h"
#include "server/training/trainer_spec.h"

namespace braid {

enum class OperationKind { kStep, kForwardBackward, kOptimStep, kForward, kPublish };

// Tells one request's payload from another's.
struct Fingerprint {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Fingerprint&) const = default;
};

struct Operation {
  OperationKind kind = OperationKind::kStep;
  int64_t sequence = 0;
  Fingerprint fingerprint;
  std::vector<HostTensor> inputs;
  std::vector<HostTensor> targets;
  HyperParameters hyper_parameters;  // kStep, kOptimStep
  Mode mode = Mode::kTrain;          // kForward
};

// A chunk of the batch and where it went.
struct TrainingChunk {
  std::string device;
  int64_t rows = 0;
};

struct OperationResult {
  int64_t applied_sequence = 0;
  int64_t durable_sequence = 0;
  int64_t step = 0;
  bool replayed = false;
  std::vector<TrainingChunk> chunks;
  std::optional<double> loss;
  std::vector<HostTensor> outputs;  // kForward
  std::string model;                // kPublish
  int64_t version = 0;              // kPublish
};

// An entry of the state_dict, copied to the host.
struct StateTensor {
  HostTensor tensor;
  bool is_parameter = false;
};

// Called once, by the trainer's thread; must not block.
using StateDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<StateTensor>>)>;
using OperationDone = absl::AnyInvocable<void(absl::StatusOr<OperationResult>)>;

}  // namespace braid
