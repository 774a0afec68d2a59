// Operations of a trainer and their results.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/durability.h"
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

// Hash of a request's payload.
struct Fingerprint {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Fingerprint&) const = default;
};

// Position of the batch in the tensors of an operation.
enum class BatchLayout {
  kClient,     // at TensorSpec::batch_dim, and at Objective::TargetBatchDim()
  kRowsFirst,  // at dim 0, as in datasets
};

struct Operation {
  OperationKind kind = OperationKind::kStep;
  BatchLayout layout = BatchLayout::kClient;
  int64_t sequence = 0;
  Fingerprint fingerprint;
  // Expected trainer ID. Empty matches any trainer with this name.
  std::string trainer_id;
  // The client that sends the operation, and the client that it expects to have sent the previous
  // one. Empty: unknown, or any client.
  std::string client_id;
  std::string last_operator;
  std::vector<HostTensor> inputs;
  std::vector<HostTensor> targets;
  HyperParameters hyper_parameters;          // kStep, kOptimStep
  Mode mode = Mode::kTrain;                  // kForward
  bool keep_graph = false;                   // kForward
  std::vector<HostTensor> output_gradients;  // kBackward
  std::string batch_id;                      // for the journal; may be empty
  std::string target_model;                  // kPublish; empty: the trainer's
  bool wait_durable = false;                 // kPublish: the result waits for the version's files
  bool report_split = false;
  // Appends the client's request, for the journal; see OperationJournal. nullptr: of a job, which
  // has no journal. May be called until the operation's callback is called.
  std::function<void(std::string*)> write_request;
  // Owns what the tensors point to; nullptr: the caller keeps it.
  std::shared_ptr<const void> request;
  // When the server received it.
  absl::Time received = absl::InfinitePast();
  // Called before the operation is applied; it is cancelled if this returns true. May be null.
  std::function<bool()> dropped;
};

// A chunk of the batch and its device.
struct TrainingChunk {
  std::string device;
  int64_t rows = 0;
  std::string stage;
  // Shapes of inputs and outputs, in their order: "[10, 5]".
  std::vector<std::string> input_shapes;
  std::vector<std::string> output_shapes;
};

// Time that an operation spent in a phase: the longest time of any worker.
struct PhaseTime {
  std::string name;
  absl::Duration time;
};

// The result of an operation: DataParallel sets what it computed, the trainer the rest.
struct OperationResult {
  int64_t applied_sequence = 0;
  int64_t durable_sequence = 0;
  int64_t step = 0;
  bool replayed = false;
  std::vector<TrainingChunk> chunks;
  std::vector<PhaseTime> phases;
  // The loss, a gradient or a buffer was not finite, so the batch or the update was not applied.
  bool skipped = false;
  // The parameters were updated. Not part of the recorded reply.
  bool updated = false;
  std::optional<double> gradient_norm;
  // 1 - mean / maximum of the workers' time for forward and backward; nullopt for one worker. Not
  // part of the recorded reply.
  std::optional<double> imbalance;
  std::optional<double> lr;
  // One per group with parameters to update; empty without an update.
  std::vector<GroupLearningRate> lrs;
  std::optional<double> loss;
  std::vector<HostTensor> outputs;  // kForward
  std::string model;                // kPublish
  int64_t version = 0;              // kPublish
  // kPublish: state of the version's files. Not part of the recorded reply.
  DurabilityState durability;
};

// An entry of the state_dict, in host memory.
struct StateTensor {
  HostTensor tensor;
  bool is_parameter = false;
};

// File format of an exported model.
enum class ExportFormat {
  kTorchScript,
  kSafetensors,  // parameters and buffers
  kPackage,
  kTrainableSafetensors,  // the parameters that updates change
};

// Callbacks: called once, by the thread that runs the operation; must not block.
using ExportDone = absl::AnyInvocable<void(absl::StatusOr<std::string>)>;
using StateDone = absl::AnyInvocable<void(absl::StatusOr<std::vector<StateTensor>>)>;
using OperationDone = absl::AnyInvocable<void(absl::StatusOr<OperationResult>)>;

}  // namespace braid
