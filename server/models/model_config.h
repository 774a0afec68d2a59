// Configuration of a model: names, datatypes and shapes of its tensors, batching and placement.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/data_type.h"
#include "server/base/durability.h"
#include "server/decode/decode_spec.h"

namespace braid {

class Decoder;

// Closed interval [min, max].
struct ValueRange {
  int64_t min = 0;
  int64_t max = 0;
};

// Value of a BOOL, INT64 or FP64 argument. monostate is None, the value of an optional argument
// that is not given; as a tensor it has no elements.
using ScalarValue = std::variant<std::monostate, bool, int64_t, double>;

// Dimension of an input whose size varies between requests: `factor` times the size of a symbol.
// Dimensions with the same symbol vary together.
struct VariableDim {
  size_t dim = 0;  // index in TensorSpec::dims
  std::string symbol;
  int64_t factor = 1;
  // Sizes of the symbol, both ends inclusive.
  int64_t min = 1;
  int64_t max = std::numeric_limits<int64_t>::max();
};

struct TensorSpec {
  std::string name;
  DataType type = DataType::kFp32;
  // Shape without the batch dimension of a batched model. -1: any size.
  std::vector<int64_t> dims;
  // True for an input of a batched model that has no batch dimension. Every replica gets all of it.
  bool broadcast = false;
  // Dim of the batch in tensors of clients and of the module; see models/batch_layout.h. 0 unless
  // the tensor has a batch dimension.
  uint32_t batch_dim = 0;
  // Shape that the module uses instead of `dims`, with the same number of elements.
  std::optional<std::vector<int64_t>> reshape = std::nullopt;
  // Input: an int, bool or float argument of forward(). Requests pass it as a parameter, not as a
  // tensor; it has rank 0 and is broadcast. Output: an int, bool or float that forward() returns,
  // sent as a parameter of the response.
  bool scalar = false;
  // Allowed values of an integer input, such as the rows of the embedding that it indexes.
  std::optional<ValueRange> range = std::nullopt;
  // True if the range was derived from the module, false if it was configured.
  bool range_derived = false;
  // Constraints of an exported pair on its input's dims of any size.
  std::vector<VariableDim> variable_dims = {};
  // Class names of an output, by index, and the file in the model's folder that lists them.
  std::vector<std::string> labels = {};
  std::string label_filename = {};
  // Configured format of an input, "FORMAT_NCHW" or "FORMAT_NHWC". Reported to clients, not used.
  std::string format = {};
  // Value of a scalar input that a request leaves out. nullopt: requests must give a value.
  std::optional<ScalarValue> default_value = std::nullopt;
  // How encoded rows, such as JPEG files, become this input, and the JSON text that configures it.
  // nullopt: the input takes tensors only.
  std::optional<DecodeSpec> decode = std::nullopt;
  std::string decode_json = {};
  // Decoder for `decode`, made when a version is loaded. Null without `decode`.
  std::shared_ptr<const Decoder> decoder = nullptr;
  // How rows of different lengths are padded, and the JSON text that configures it. nullopt: they
  // are not.
  std::optional<PadSpec> pad = std::nullopt;
  std::string pad_json = {};
  // Decoder for `pad`, made when a version is loaded, also for the mask of another input's `pad`.
  std::shared_ptr<const Decoder> padding = nullptr;
};

// Limits of a request queue, or of one priority level in it.
struct QueuePolicy {
  // Action for a request that times out.
  enum class TimeoutAction {
    kReject,
    kDelay,  // runs when no other request waits
  };
  TimeoutAction timeout_action = TimeoutAction::kReject;
  // Timeout of requests that set none. Zero: no timeout.
  absl::Duration default_timeout;
  // True if a request may set a shorter timeout.
  bool allow_timeout_override = false;
  // Maximum number of waiting requests. 0: limited by admission control only.
  int64_t max_queue_size = 0;
};

// Workers that hold a replica: `count` on each of their devices. The default is one replica on
// every worker.
struct InstanceGroup {
  enum class Kind { kAuto, kGpu, kCpu };
  Kind kind = Kind::kAuto;
  int64_t count = 1;
  std::vector<int64_t> gpus;  // empty: all
};

// Versions in the repository that the server serves.
struct LatestVersions {
  int64_t count = 1;
};
struct AllVersions {};
struct SpecificVersions {
  std::vector<int64_t> versions;
};
using VersionPolicy = std::variant<LatestVersions, AllVersions, SpecificVersions>;

// Request that every replica runs before the model becomes ready.
struct Warmup {
  enum class Fill { kZero, kRandom, kFile };
  struct Input {
    DataType type = DataType::kFp32;
    std::vector<int64_t> dims;
    Fill fill = Fill::kZero;
    std::string file =
        {};  // in the model's folder warmup/; holds the bytes of one row or of all rows
  };
  std::string name;
  int64_t batch_size = 0;  // rows; ignored if the model is not batched
  std::map<std::string, Input> inputs;
  int64_t count = 1;
};

// States if each output row depends only on the same row of the inputs. Merging requests and
// splitting batches require it.
enum class RowIndependence {
  kUnproven,   // Could not be tested.
  kProven,     // Tested with values when the version was loaded or published.
  kAssumed,    // Set by the configuration.
  kDependent,  // Rows depend on each other: every request is a batch of its own.
};

struct ModelConfig {
  std::string name;
  // Maximum rows of one forward pass; larger requests are split. 0: the model is not batched. Then
  // dims are whole shapes, and requests are neither merged nor split.
  int64_t max_batch_size = 0;
  // True if the model is not batched because its package was exported with a fixed number of rows
  // and has no config.pbtxt.
  bool fixed_rows = false;
  // Minimum number of rows of the package. Smaller batches are padded with copies of a row, unless
  // rows depend on each other.
  int64_t min_rows = 1;
  // Maximum number of rows of the package.
  int64_t max_rows = std::numeric_limits<int64_t>::max();
  // Maximum time that a batch waits for more rows while a worker is free.
  absl::Duration max_queue_delay;
  // Batch sizes that run without waiting for more rows. Ascending.
  std::vector<int64_t> preferred_batch_sizes;
  // Rows of a large request that one forward pass takes. 0: chosen by the state of the queue.
  int64_t preferred_chunk_rows = 0;
  // True if responses of one priority level keep the order of their requests.
  bool preserve_ordering = false;
  // Priority levels are 1, the most urgent, to `priority_levels`. 0: no priorities.
  int64_t priority_levels = 0;
  int64_t default_priority_level = 0;
  QueuePolicy default_queue_policy;
  std::map<int64_t, QueuePolicy> priority_queue_policies;
  // Share of device time relative to other models, while all of them have requests. > 0.
  double weight = 1;
  std::vector<InstanceGroup> instance_groups;
  VersionPolicy version_policy;
  std::vector<Warmup> warmups;
  // File in the version's folder. Empty: model.pt, or model.pt2 if there is no model.pt.
  std::string model_filename;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  // Configured descriptions of forward()'s scalar arguments, by name, in the format of
  // DescribeScalar(). They must match the module.
  std::map<std::string, std::string> scalars;
  // Origin of a published version: "trainer", "step", "sequence", "checkpoint" and "created".
  std::map<std::string, std::string> origin;
  // State of the files of a published version, which changes while it is served.
  // nullptr: not a published version.
  std::shared_ptr<const std::atomic<Durability>> durability;
  // True if a configuration declares the batch dimension, false if it was derived from the file.
  bool batching_declared = false;
  RowIndependence row_independence = RowIndependence::kUnproven;
  // Evidence for kDependent, or the reason for kUnproven. Empty: not tested yet.
  std::string row_independence_reason;
  // True while a published version is tested. row_independence is then that of the model's last
  // load.
  bool rows_untested = false;

  // True if inputs and outputs have a batch dimension before their dims.
  bool batched() const { return max_batch_size > 0; }
  // True if a request may have any number of rows, and clients may send a batch in several
  // requests.
  bool has_independent_rows() const {
    return batched() && row_independence != RowIndependence::kDependent;
  }
  // True if requests may share a batch and one request may use several batches.
  bool merges_requests() const { return has_independent_rows() && !rows_untested; }
  // True if tensors of `spec` have a batch dimension before its dims.
  bool has_batch_dim(const TensorSpec& spec) const { return batched() && !spec.broadcast; }
};

// Maximum batch size of a batched model without a config.pbtxt.
inline constexpr int64_t kDefaultMaxBatchSize = 256;

// Reads the config.pbtxt at `path` for model `name`. UNIMPLEMENTED for a setting that Braid does
// not support, INVALID_ARGUMENT for an invalid value; both name the field.
using ConfigReader =
    std::function<absl::StatusOr<ModelConfig>(const std::string& path, const std::string& name)>;
// Reads a configuration in JSON that replaces the config.pbtxt in the model's folder `folder`.
using ConfigOverride = std::function<absl::StatusOr<ModelConfig>(
    const std::string& json, const std::string& folder, const std::string& name)>;

}  // namespace braid
