// Configuration of a trainer, and its state as clients see it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/storage/journal_records.h"

namespace braid {

enum class Reduction {
  kMean,
  kSum,
  kBatchMean,  // kl_div: the sum divided by the number of rows
};

// One loss. A trainer minimizes the weighted sum of its losses. Names, parameters and defaults are
// those of torch.nn.functional.
struct LossSpec {
  // A name of loss_spec.cc; empty: the model computes the loss.
  std::string name;
  std::string output;  // empty: the model's first output
  // Instead of `output`: the outputs of cosine_embedding (input1, input2), triplet_margin (anchor,
  // positive, negative) and gaussian_nll (mean, variance); empty: the model's first ones.
  std::vector<std::string> outputs;
  std::string target;          // empty: "target"; none for triplet_margin
  std::string target_lengths;  // ctc: another target; empty: "target_lengths"
  std::string input_lengths;   // ctc: another target; empty: all time steps
  Reduction reduction = Reduction::kMean;
  // Factor in the sum of the losses.
  double weight = 1;
  std::optional<int64_t> ignore_index;  // cross_entropy, nll, focal, dice; default -100
  double label_smoothing = 0;           // cross_entropy
  std::vector<double> class_weights;    // cross_entropy, nll, focal; one per class; empty: all 1
  // bce_with_logits: broadcast to a row of the output, in row-major order; empty: 1. The shape of
  // one-dimensional weights is empty.
  std::vector<double> pos_weight;
  std::vector<int64_t> pos_weight_shape;
  std::optional<double> beta;     // smooth_l1; default 1
  std::optional<double> delta;    // huber; default 1
  bool log_target = false;        // kl_div
  std::optional<double> margin;   // cosine_embedding: default 0; triplet_margin: default 1
  std::optional<double> p;        // triplet_margin: degree of the norm; default 2
  bool swap = false;              // triplet_margin
  std::optional<double> eps;      // triplet_margin, gaussian_nll: default 1e-6; poisson_nll: 1e-8
  bool full = false;              // gaussian_nll, poisson_nll
  std::optional<bool> log_input;  // poisson_nll; default true
  std::optional<double> gamma;    // focal, sigmoid_focal; default 2
  std::optional<double> alpha;    // sigmoid_focal; default 0.25; -1: none
  std::optional<double> smooth;   // dice; default 1
  int64_t blank = 0;              // ctc: class of the blank
  bool zero_infinity = false;     // ctc
  // "module": a TorchScript file: forward(output, target) -> Tensor, 0-dim.
  std::string module;
};

// Place where the loss is computed.
enum class LossMode {
  kCentral,     // once, over the gathered outputs
  kPerReplica,  // on each replica, on its own rows, weighted by its share of the whole
  kModel,       // by the model, which takes the targets as inputs and returns the loss
  kClient,      // by the client: Forward, then Backward with the outputs' gradients
};

// Parameters of torch.optim.SGD.
struct SgdSpec {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

// Parameters of torch.optim.Adam (weight decay is an L2 penalty) or AdamW (weight decay is
// decoupled).
struct AdamSpec {
  bool decoupled_weight_decay = false;  // AdamW
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // a client's AdamW defaults to 1e-2
  bool amsgrad = false;
};

// Parameters of torch.optim.RMSprop.
struct RmsPropSpec {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

// Parameters of torch.optim.Adagrad.
struct AdagradSpec {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};

using OptimizerSpec = std::variant<SgdSpec, AdamSpec, RmsPropSpec, AdagradSpec>;

// Parameters that are updated differently from the rest. A parameter belongs to the first group
// whose pattern matches its name, or to none.
struct ParameterGroupSpec {
  // Regular expression (RE2) that matches a part of the parameter's name: "^features\\.", "bias$".
  std::string pattern;
  bool frozen = false;  // gradients are not computed, values are not updated
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<double> momentum;
};

// Learning-rate schedules, by the names of torch.optim.lr_scheduler; t counts updates from 0.
struct StepScheduleSpec {
  int64_t step_size = 1;
  double gamma = 0.1;
};
struct MultiStepScheduleSpec {
  std::vector<int64_t> milestones;  // ascending
  double gamma = 0.1;
};
struct ExponentialScheduleSpec {
  double gamma = 1;
};
struct CosineScheduleSpec {
  int64_t t_max = 1;
  double eta_min = 0;
};
// Parameters of OneCycleLR, which replaces the optimizer's lr.
struct OneCycleScheduleSpec {
  double max_lr = 0;
  int64_t total_steps = 1;
  double pct_start = 0.3;
  bool linear = false;  // anneals linearly; else along a cosine
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
};
// Parameters of ReduceLROnPlateau, which watches the mean loss of each `interval` updates, or the
// metric that the client sends.
struct PlateauScheduleSpec {
  int64_t interval = 1;
  bool maximize = false;  // a larger metric is better
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;
  bool absolute_threshold = false;
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;
};
// Parameters of LinearLR as a warm-up before the schedule, which counts from the warm-up's end.
struct WarmupSpec {
  int64_t steps = 0;  // 0: no warm-up
  double start_factor = 1.0 / 3;
};

struct ScheduleSpec {
  WarmupSpec warmup;
  // monostate: constant.
  std::variant<std::monostate, StepScheduleSpec, MultiStepScheduleSpec, ExponentialScheduleSpec,
               CosineScheduleSpec, OneCycleScheduleSpec, PlateauScheduleSpec>
      kind;
};

// Parameters of torch.nn.utils.clip_grad_norm_ and clip_grad_value_, which clip the gradients of
// the whole batch.
struct ClippingSpec {
  std::optional<double> max_norm;
  double norm_type = 2;  // infinity: the largest absolute value
  std::optional<double> max_value;
};

enum class Precision {
  kModel,     // the parameters' own
  kBfloat16,  // autocast
  kFloat16,   // autocast, with a gradient scaler
};

// Parameters of torch.amp.GradScaler, for kFloat16.
struct GradScalerSpec {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

// Policy for a step whose loss or gradients are not finite.
enum class NonFinitePolicy {
  kFail,  // FAILED_PRECONDITION; nothing changes
  kSkip,  // the operation succeeds, but the update is skipped
};

// How the replicas get the same parameters after an update.
enum class SyncMode {
  kAuto,             // the one that was faster when measured
  kReduceBroadcast,  // gradients to the primary, one update there, parameters to all
  kAllReduce,        // gradients to all, the same update on each
};

// A submodule with devices of its own. A model is a sequence of stages: the outputs of one, in
// order, are the inputs of the next.
struct StageSpec {
  std::string path;                  // of the submodule: "features"; empty: the whole model
  std::vector<std::string> devices;  // the first holds the primary; empty: all devices
};

enum class JournalMode {
  kOperations,  // OperationJournal, if there is a data directory
  kNone,
};

struct CheckpointPolicy {
  // Writes a checkpoint in the background after this many operations, or after this time if there
  // was an operation in it, whichever comes first. 0: never for that reason.
  int64_t every_operations = 0;
  absl::Duration every = absl::ZeroDuration();
  // Number of checkpoints to keep, newest first. 0: all.
  int64_t keep = 3;
};

// Values that one update uses instead of those in the spec.
struct HyperParameters {
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<double> momentum;
  // One per parameter group, in their order; empty: the groups' own.
  std::vector<double> group_lr;
  // Value that a plateau schedule watches instead of the loss.
  std::optional<double> metric;
};

struct TrainerSpec {
  std::string name;
  std::string model;
  // 0: the version that is being served.
  int64_t base_version = 0;
  // Trainer of the same model whose checkpoint has the initial weights and buffers; empty: those of
  // `base_version`. Used when the trainer is created.
  std::string from_trainer;
  std::string from_checkpoint;  // empty: the newest
  std::vector<LossSpec> losses;
  LossMode loss_mode = LossMode::kCentral;
  // kModel: uses the plain mean of the chunks' losses, which is right only for even chunks.
  bool unweighted_mean = false;
  OptimizerSpec optimizer;
  std::vector<ParameterGroupSpec> groups;
  ScheduleSpec schedule;
  ClippingSpec clipping;
  Precision precision = Precision::kModel;
  GradScalerSpec grad_scaler;
  NonFinitePolicy non_finite = NonFinitePolicy::kFail;
  SyncMode sync = SyncMode::kAuto;
  bool sync_batch_norm = false;
  // Patterns (RE2) that match a part of the paths of submodules: these, and their submodules, run
  // in evaluation mode in training.
  std::vector<std::string> eval_modules;
  // Seed of the random numbers that the model draws in training, for example for dropout.
  uint64_t seed = 0;
  // Empty: one stage, the whole model on all devices.
  std::vector<StageSpec> stages;
  // Device on which outputs are gathered and the loss is computed: a device of the server, or
  // "host". Empty: the last stage's primary device.
  std::string output_device;
  // Maximum rows that a replica processes at once; 0: its whole chunk.
  int64_t micro_batch = 0;
  CheckpointPolicy checkpoints;
  JournalMode journal = JournalMode::kOperations;
  JournalHistory journal_history = {};
  // Deletes the trainer after this time without use, after a checkpoint if there is a data
  // directory. Zero: never.
  absl::Duration idle_timeout = absl::ZeroDuration();
  std::string request_id;
  // Creating a trainer of a name in use returns the existing one, if it has the same model.
  bool exist_ok = false;
};

// Learning rate of the parameters of a group.
struct GroupLearningRate {
  std::string group;  // ParameterGroupSpec::pattern; empty: the parameters outside groups
  double lr = 0;

  bool operator==(const GroupLearningRate&) const = default;
};

// A stage and its devices.
struct StageInfo {
  std::string path;
  std::vector<std::string> devices;
};

// Memory of a trainer on one device, in bytes.
struct DeviceMemory {
  std::string device;
  int64_t current = 0;
  int64_t peak = 0;
};

// Summary of a trainer's state.
struct TrainerState {
  std::string name;
  std::string model;
  bool failed = false;   // an update was interrupted: Trainer::Poison()
  bool on_disk = false;  // it is read when it is used
  int64_t step = 0;
  double lr = 0;
  std::vector<std::string> devices;
  std::vector<DeviceMemory> memory;
};

struct TrainerInfo {
  TrainerSpec spec;  // with all defaults filled in
  std::vector<std::string> devices;
  int64_t step = 0;
  int64_t applied_sequence = 0;
  int64_t durable_sequence = 0;
  int64_t accumulated = 0;
  // Steps skipped because the loss or a gradient was not finite.
  int64_t skipped = 0;
  double lr = 0;
  std::vector<DeviceMemory> memory;
  // Unique: a later trainer of the same name has another.
  std::string id;
  // Sequence::last_operator().
  std::string last_operator;
  // Differences between a training step and the same step on one device, one sentence each.
  std::vector<std::string> notes;
  // Learning rates of the next update, one per group with parameters to update.
  std::vector<GroupLearningRate> lrs;
  bool on_disk = false;  // it is read when it is used
};

}  // namespace braid
