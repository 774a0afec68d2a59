// What is known of a model before a request comes: names, datatypes, shapes and batching.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/data_type.h"

namespace braid {

// Both included.
struct ValueRange {
  int64_t min = 0;
  int64_t max = 0;
};

// The type of a scalar argument is BOOL, INT64 or FP64; monostate: None, of one that is optional,
// as a tensor one without elements.
using ScalarValue = std::variant<std::monostate, bool, int64_t, double>;

struct TensorSpec {
  std::string name;
  DataType type = DataType::kFp32;
  // Without the batch dimension where the model is batched; -1: any size.
  std::vector<int64_t> dims;
  // An input that has no batch dimension in a batched model: every replica gets it whole.
  bool broadcast = false;
  // The shape that the module takes or gives where the wire has `dims`: as many elements.
  std::optional<std::vector<int64_t>> reshape = std::nullopt;
  // An int, bool or float argument of forward(): no tensor of a request but a parameter of it, of
  // rank 0 and broadcast. An output: an int, bool or float that forward() returns, a parameter of
  // the response.
  bool scalar = false;
  // What an integer input may hold, such as the rows of the embedding that it indexes.
  std::optional<ValueRange> range = std::nullopt;
  // Whether the range is the module's own, and not the configuration's.
  bool range_derived = false;
  // Of an output: the names of its classes, by index, and the file in the model's folder that they
  // are from.
  std::vector<std::string> labels = {};
  std::string label_filename = {};
  // Of an input: "FORMAT_NCHW" or "FORMAT_NHWC" where the configuration says so, for clients alone.
  std::string format = {};
  // Of a scalar: what it is where a request does not give it. None: every request has to.
  std::optional<ScalarValue> default_value = std::nullopt;
};

// What becomes of requests that wait, or of those of one priority.
struct QueuePolicy {
  enum class TimeoutAction {
    kReject,
    kDelay,  // they are run when no other request waits
  };
  TimeoutAction timeout_action = TimeoutAction::kReject;
  // Of a request that gives none. Zero: none.
  absl::Duration default_timeout;
  // Whether a request may shorten it.
  bool allow_timeout_override = false;
  // Requests that wait at once. 0: as many as admission lets in.
  int64_t max_queue_size = 0;
};

// Workers that hold a replica: `count` on each of their devices. By default one on every worker.
struct InstanceGroup {
  enum class Kind { kAuto, kGpu, kCpu };
  Kind kind = Kind::kAuto;
  int64_t count = 1;
  std::vector<int64_t> gpus;  // empty: all
};

// Which versions in the repository are served.
struct LatestVersions {
  int64_t count = 1;
};
struct AllVersions {};
struct SpecificVersions {
  std::vector<int64_t> versions;
};
using VersionPolicy = std::variant<LatestVersions, AllVersions, SpecificVersions>;

// A request that every replica runs before the model is ready.
struct Warmup {
  enum class Fill { kZero, kRandom, kFile };
  struct Input {
    DataType type = DataType::kFp32;
    std::vector<int64_t> dims;
    Fill fill = Fill::kZero;
    std::string file;  // in the model's folder warmup/: the bytes of one row, or of all
  };
  std::string name;
  int64_t batch_size = 0;  // rows; means nothing if the model is not batched
  std::map<std::string, Input> inputs;
  int64_t count = 1;
};

// Knowledge about whether a row of the outputs depends on its own row of the inputs alone. Merging
// requests and splitting batches requires it.
enum class RowIndependence {
  kUnproven,   // Could not be tested.
  kProven,     // Tested by values when the version was loaded or published.
  kAssumed,    // The configuration says so.
  kDependent,  // Rows depend on each other: every request is a batch of its own.
};

struct ModelConfig {
  std::string name;
  // Largest batch of one forward pass. 0: the model is not batched: dims are whole shapes, requests
  // are neither merged nor split. A larger request is split, not refused.
  int64_t max_batch_size = 0;
  // Whether it is not batched because its package, which has no config.pbtxt, was exported for one
  // number of rows.
  bool fixed_rows = false;
  // The fewest rows that the package was made for. Smaller batches are filled up with copies of a
  // row, unless rows depend on each other.
  int64_t min_rows = 1;
  // How long a batch that is not full waits for more, while a worker is free.
  absl::Duration max_queue_delay;
  // Batches of these rows are made sooner than others. Ascending.
  std::vector<int64_t> preferred_batch_sizes;
  // Rows of a large request that one forward pass takes. 0: what the queue's state suggests.
  int64_t preferred_chunk_rows = 0;
  // Requests of one priority are answered in the order in which they came.
  bool preserve_ordering = false;
  // Priorities are 1, the most urgent, to `priority_levels`; 0: there are none.
  int64_t priority_levels = 0;
  int64_t default_priority_level = 0;
  QueuePolicy default_queue_policy;
  std::map<int64_t, QueuePolicy> priority_queue_policies;
  // Of the time for which models that share a device all have requests, this one's part is
  // proportional to it. > 0.
  double weight = 1;
  std::vector<InstanceGroup> instance_groups;
  VersionPolicy version_policy;
  std::vector<Warmup> warmups;
  // In the version's folder. Empty: model.pt, or else model.pt2.
  std::string model_filename;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  // What the configuration says that forward's numbers are, as DescribeScalar() does, by name: the
  // module says so itself, and has to agree.
  std::map<std::string, std::string> scalars;
  // Of a version that a trainer published: "trainer", "step", "sequence", "checkpoint", "created".
  std::map<std::string, std::string> origin;
  // The batch dimension is declared by a configuration and not derived from the model's file.
  bool batching_declared = false;
  RowIndependence row_independence = RowIndependence::kUnproven;
  // The evidence for kDependent, or the reason for kUnproven. Empty: not tested yet.
  std::string row_independence_reason;

  // True if inputs and outputs have a batch dimension before their dims.
  bool batched() const { return max_batch_size > 0; }
  // True if requests may share a batch and one request may use several batches.
  bool merges_requests() const {
    return batched() && row_independence != RowIndependence::kDependent;
  }
  // Whether tensors of `spec` have a dimension before its dims.
  bool has_batch_dim(const TensorSpec& spec) const { return batched() && !spec.broadcast; }
};

// Of a batch of a model that has no config.pbtxt.
inline constexpr int64_t kDefaultMaxBatchSize = 256;

// Reads a config.pbtxt for the model in folder `name`. UNIMPLEMENTED for a setting that Braid does
// not have, INVALID_ARGUMENT for one that makes no sense, naming the field.
using ConfigReader =
    std::function<absl::StatusOr<ModelConfig>(const std::string& path, const std::string& name)>;
// The same for a text in JSON that takes the place of the file in the model's folder `folder`.
using ConfigOverride = std::function<absl::StatusOr<ModelConfig>(
    const std::string& json, const std::string& folder, const std::string& name)>;

}  // namespace braid
