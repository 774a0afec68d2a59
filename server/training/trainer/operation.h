// What a client asks of a trainer, and what it is told.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/host_tensor.h"
#include "server/parallel/mode.h"
#include "server/training/trainer_spec.h"

namespace braid {

enum class OperationKind {
  kStep,
  kForwardBackward,
  kOptimStep,
  kForward,
  kBackward,
  kPublish,
};

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
  // Of the trainer that it is meant for; empty: of whichever has the name.
  std::string trainer_id;
  // Who makes it, and who is to have made the one before; empty: not told, anybody.
  std::string client_id;
  std::string last_operator;
  std::vector<HostTensor> inputs;
  std::vector<HostTensor> targets;
  HyperParameters hyper_parameters;          // kStep, kOptimStep
  Mode mode = Mode::kTrain;                  // kForward
  bool keep_graph = false;                   // kForward
  std::vector<HostTensor> output_gradients;  // kBackward
  bool report_split = false;
  // When it came.
  absl::Time received = absl::InfinitePast();
  // Asked when its turn has come: whether it is not to be applied any more. Null: it is.
  std::function<bool()> dropped;
};

// A chunk of the batch and where it went.
struct TrainingChunk {
  std::string device;
  int64_t rows = 0;
  std::string stage;
  // Of inputs and outputs, in their order: "[10, 5]".
  std::vector<std::string> input_shapes;
  std::vector<std::string> output_shapes;
};

// The time that an operation spent in a phase: the longest of its workers'.
struct PhaseTime {
  std::string name;
  absl::Duration time;
};

struct OperationResult {
  int64_t applied_sequence = 0;
  int64_t durable_sequence = 0;
  int64_t step = 0;
  bool replayed = false;
  std::vector<TrainingChunk> chunks;
  std::vector<PhaseTime> phases;
  // The loss or a gradient was not finite; nothing was updated.
  bool skipped = false;
  std::optional<double> gradient_norm;
  std::optional<double> lr;
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

// A model as a file.
enum class ExportFormat { kTorchScript, kSafetensors, kPackage };

// Called once, by the trainer's thread; must not block.
using ExportDone = absl::AnyInvocable<void(absl::StatusOr<std::string>)>;
using StateDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<StateTensor>>)>;
using OperationDone = absl::AnyInvocable<void(absl::StatusOr<OperationResult>)>;

}  // namespace braid
