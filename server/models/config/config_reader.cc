#include "server/models/config/config_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"
#include "inference/model_config.pb.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/decode/decode_spec.h"
#include "server/models/batch_dimension.h"
#include "server/models/model_config.h"
#include "server/storage/names.h"

namespace braid {
namespace {

// Unsupported settings

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Returns the path of the first field that is set in `message`; "" if there is none.
std::string FirstSetting(const Message& message) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    if (field->is_repeated() || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return field->name();
    }
    const std::string inner = FirstSetting(message.GetReflection()->GetMessage(message, field));
    if (!inner.empty()) {
      return absl::StrCat(field->name(), ".", inner);
    }
  }
  return "";
}

// UNIMPLEMENTED for the setting `name`.
absl::Status NotImplemented(absl::string_view name) {
  return absl::UnimplementedError(
      absl::StrCat(name, " is not implemented: remove it from config.pbtxt"));
}

// UNIMPLEMENTED for a field that is set in `message` and is not one of `known`. where: prefix of
// the field's name in the error, such as "input[0].". A field of a message type counts only if it
// contains a setting: empty messages and default values request nothing.
absl::Status CheckKnownFields(const Message& message, const std::set<absl::string_view>& known,
                              absl::string_view where) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    if (known.find(field->name()) != known.end()) {
      continue;
    }
    if (field->is_repeated() || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return NotImplemented(absl::StrCat(where, field->name()));
    }
    const std::string inner = FirstSetting(message.GetReflection()->GetMessage(message, field));
    if (!inner.empty()) {
      return NotImplemented(absl::StrCat(where, field->name(), ".", inner));
    }
    // The choice of a oneof, such as the scheduler, is a setting even if its message is empty.
    if (field->containing_oneof() != nullptr) {
      return NotImplemented(absl::StrCat(where, field->name()));
    }
  }
  return absl::OkStatus();
}

// Section: input and output

constexpr uintmax_t kMaxLabelBytes = 16 << 20;

absl::StatusOr<DataType> ToDataType(inference::DataType type, absl::string_view where) {
  constexpr absl::string_view kPrefix = "TYPE_";
  const std::string name = inference::DataType_Name(type);
  const auto found = DataTypeFromName(absl::string_view(name).substr(kPrefix.size()));
  if (!found) {
    return InvalidField(where,
                        absl::StrCat("unsupported datatype ", name, " (expected TYPE_ and one of ",
                                     AllDataTypeNames(), ")"));
  }
  return *found;
}

template <typename Dims>
absl::StatusOr<std::vector<int64_t>> ToShape(const Dims& dims, const std::string& where) {
  std::vector<int64_t> shape;
  for (const int64_t dim : dims) {
    if (dim < 1 && dim != -1) {
      return InvalidField(
          where, absl::StrCat(dim, " (expected a size of at least 1, or -1 for any size)"));
    }
    shape.push_back(dim);
  }
  return shape;
}

// Returns the products of the sizes before, between and after the -1s. nullopt on overflow.
std::optional<std::vector<int64_t>> FixedProducts(const std::vector<int64_t>& shape) {
  std::vector<int64_t> products = {1};
  for (const int64_t dim : shape) {
    if (dim < 0) {
      products.push_back(1);
    } else if (__builtin_mul_overflow(products.back(), dim, &products.back())) {
      return std::nullopt;
    }
  }
  return products;
}

// Applies Triton's rules: neither shape has the batch dimension, both have the same number of
// elements, and the products of the fixed sizes around each -1 are equal.
absl::Status CheckReshape(const TensorSpec& spec, bool batched, const std::string& where) {
  const std::string field = where + ".reshape.shape";
  if (spec.reshape->empty() && !batched) {
    return InvalidField(field,
                        "empty shape of a model that is not batched (expected at least one size)");
  }
  const auto from = FixedProducts(spec.dims);
  const auto to = FixedProducts(*spec.reshape);
  if (!from || !to || *from != *to) {
    return InvalidField(
        field,
        absl::StrCat(ShapeString(*spec.reshape), " does not fit dims ", ShapeString(spec.dims),
                     " (expected the same number of -1s, and equal products of the sizes "
                     "around each)"));
  }
  return absl::OkStatus();
}

template <typename Tensor>
absl::StatusOr<TensorSpec> ToSpec(const Tensor& tensor, bool batched, const std::string& where) {
  if (tensor.name().empty()) {
    return InvalidField(where + ".name", "the name is empty");
  }
  TensorSpec spec;
  spec.name = tensor.name();
  BRAID_ASSIGN_OR_RETURN(spec.type, ToDataType(tensor.data_type(), where + ".data_type"));
  BRAID_ASSIGN_OR_RETURN(spec.dims, ToShape(tensor.dims(), where + ".dims"));
  if (!FixedProducts(spec.dims)) {
    return InvalidField(where + ".dims",
                        absl::StrCat(ShapeString(spec.dims), " has too many elements"));
  }
  if (tensor.has_reshape()) {
    BRAID_ASSIGN_OR_RETURN(spec.reshape,
                           ToShape(tensor.reshape().shape(), where + ".reshape.shape"));
    BRAID_RETURN_IF_ERROR(CheckReshape(spec, batched, where));
  }
  return spec;
}

// Reads a file of labels, one per line, as Triton does.
absl::StatusOr<std::vector<std::string>> ReadLabels(const std::string& folder,
                                                    const std::string& filename,
                                                    const std::string& field) {
  if (!IsFolderName(filename)) {
    return InvalidField(field,
                        absl::StrCat("'", Excerpt(filename),
                                     "' (expected the name of a file in the model's folder)"));
  }
  const std::filesystem::path path = std::filesystem::path(folder) / filename;
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) {
    file.open(path);
  }
  if (!file.is_open()) {
    return InvalidField(
        field, absl::StrCat("cannot read '", filename, "' (expected a file in '", folder, "')"));
  }
  if (std::filesystem::file_size(path, error) > kMaxLabelBytes) {
    return InvalidField(field, absl::StrCat("'", filename, "' is larger than ", kMaxLabelBytes,
                                            " bytes (expected one label per line)"));
  }
  std::vector<std::string> labels;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    labels.push_back(std::move(line));
  }
  return labels;
}

absl::Status CheckFormat(const inference::ModelInput& input, const std::string& where) {
  if (input.format() != inference::ModelInput::FORMAT_NONE && input.dims_size() != 3) {
    return InvalidField(where + ".format",
                        absl::StrCat(inference::ModelInput::Format_Name(input.format()), " with ",
                                     input.dims_size(), " dims (expected 3 dims)"));
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const std::vector<TensorSpec>& specs, absl::string_view field) {
  std::set<absl::string_view> names;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!names.insert(specs[i].name).second) {
      return InvalidField(absl::StrCat(field, "[", i, "].name"),
                          absl::StrCat("duplicate name '", Excerpt(specs[i].name), "'"));
    }
  }
  if (specs.empty()) {
    return InvalidField(field, "no tensors (list all of them, or remove config.pbtxt)");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorSpec>> ReadInputSpecs(const inference::ModelConfig& text) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < text.input_size(); ++i) {
    const inference::ModelInput& input = text.input(i);
    const std::string where = absl::StrCat("input[", i, "]");
    BRAID_RETURN_IF_ERROR(
        CheckKnownFields(input, {"name", "data_type", "format", "dims", "reshape"}, where + "."));
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, ToSpec(input, text.max_batch_size() > 0, where));
    BRAID_RETURN_IF_ERROR(CheckFormat(input, where));
    if (input.format() != inference::ModelInput::FORMAT_NONE) {
      spec.format = inference::ModelInput::Format_Name(input.format());
    }
    specs.push_back(std::move(spec));
  }
  BRAID_RETURN_IF_ERROR(CheckNames(specs, "input"));
  return specs;
}

// folder: the model's folder, which has the label files.
absl::StatusOr<std::vector<TensorSpec>> ReadOutputSpecs(const inference::ModelConfig& text,
                                                        const std::string& folder) {
  std::vector<TensorSpec> specs;
  for (int o = 0; o < text.output_size(); ++o) {
    const inference::ModelOutput& output = text.output(o);
    const std::string where = absl::StrCat("output[", o, "]");
    BRAID_RETURN_IF_ERROR(CheckKnownFields(
        output, {"name", "data_type", "dims", "reshape", "label_filename"}, where + "."));
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, ToSpec(output, text.max_batch_size() > 0, where));
    if (!output.label_filename().empty()) {
      spec.label_filename = output.label_filename();
      BRAID_ASSIGN_OR_RETURN(
          spec.labels, ReadLabels(folder, output.label_filename(), where + ".label_filename"));
    }
    specs.push_back(std::move(spec));
  }
  BRAID_RETURN_IF_ERROR(CheckNames(specs, "output"));
  return specs;
}

// Section: dynamic_batching

constexpr uint64_t kMaxDelayMicroseconds = 60'000'000;
constexpr uint64_t kMaxTimeoutMicroseconds = 1'000'000'000'000;  // 11 days
constexpr uint64_t kMaxPriorityLevels = 65536;

absl::StatusOr<QueuePolicy> ToPolicy(const inference::ModelQueuePolicy& text,
                                     bool preserve_ordering, const std::string& where) {
  QueuePolicy policy;
  const uint64_t timeout = text.default_timeout_microseconds();
  if (timeout > kMaxTimeoutMicroseconds) {
    return InvalidField(where + ".default_timeout_microseconds",
                        absl::StrCat(timeout, " (expected at most ", kMaxTimeoutMicroseconds, ")"));
  }
  policy.default_timeout = absl::Microseconds(static_cast<int64_t>(timeout));
  policy.allow_timeout_override = text.allow_timeout_override();
  policy.max_queue_size = text.max_queue_size();
  switch (text.timeout_action()) {
    case inference::ModelQueuePolicy::REJECT:
      policy.timeout_action = QueuePolicy::TimeoutAction::kReject;
      break;
    case inference::ModelQueuePolicy::DELAY:
      policy.timeout_action = QueuePolicy::TimeoutAction::kDelay;
      break;
    default:
      return InvalidField(where + ".timeout_action",
                          absl::StrCat("unknown action ", static_cast<int>(text.timeout_action()),
                                       " (expected REJECT or DELAY)"));
  }
  if (preserve_ordering && policy.timeout_action == QueuePolicy::TimeoutAction::kDelay &&
      timeout > 0) {
    return InvalidField(where + ".timeout_action",
                        "DELAY conflicts with preserve_ordering (expected REJECT)");
  }
  return policy;
}

absl::Status ReadPreferredSizes(const inference::ModelDynamicBatching& text, ModelConfig* config) {
  for (const int64_t size : text.preferred_batch_size()) {
    if (size < 1 || size > config->max_batch_size) {
      return InvalidField(
          "dynamic_batching.preferred_batch_size",
          absl::StrCat(size, " (expected 1 to max_batch_size, ", config->max_batch_size, ")"));
    }
    config->preferred_batch_sizes.push_back(size);
  }
  std::vector<int64_t>& sizes = config->preferred_batch_sizes;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return absl::OkStatus();
}

absl::Status CheckLevels(const inference::ModelDynamicBatching& text) {
  const uint64_t levels = text.priority_levels();
  const uint64_t default_level = text.default_priority_level();
  if (levels > kMaxPriorityLevels) {
    return InvalidField("dynamic_batching.priority_levels",
                        absl::StrCat(levels, " (expected at most ", kMaxPriorityLevels, ")"));
  }
  if (levels == 0 && (default_level != 0 || text.priority_queue_policy_size() > 0)) {
    return InvalidField("dynamic_batching.priority_levels",
                        "0 with a default level or a level's queue policy (expected the number of "
                        "levels)");
  }
  if (levels > 0 && (default_level < 1 || default_level > levels)) {
    return InvalidField(
        "dynamic_batching.default_priority_level",
        absl::StrCat(default_level, " (expected 1 to priority_levels, ", levels, ")"));
  }
  if (text.preserve_ordering() && levels > 1) {
    return InvalidField("dynamic_batching.priority_levels",
                        absl::StrCat(levels, " with preserve_ordering (expected at most 1)"));
  }
  for (const auto& [level, policy] : text.priority_queue_policy()) {
    if (level < 1 || level > levels) {
      return InvalidField(
          absl::StrCat("dynamic_batching.priority_queue_policy[", level, "]"),
          absl::StrCat("unknown level (expected 1 to priority_levels, ", levels, ")"));
    }
  }
  return absl::OkStatus();
}

// Fills the queue settings of `config`, whose max_batch_size is set. Rejects what Triton rejects.
absl::Status ReadDynamicBatching(const inference::ModelDynamicBatching& text, ModelConfig* config) {
  const uint64_t delay = text.max_queue_delay_microseconds();
  if (delay > kMaxDelayMicroseconds) {
    return InvalidField("dynamic_batching.max_queue_delay_microseconds",
                        absl::StrCat(delay, " (expected at most ", kMaxDelayMicroseconds, ")"));
  }
  config->max_queue_delay = absl::Microseconds(static_cast<int64_t>(delay));
  BRAID_RETURN_IF_ERROR(ReadPreferredSizes(text, config));
  BRAID_RETURN_IF_ERROR(CheckLevels(text));
  config->preserve_ordering = text.preserve_ordering();
  config->priority_levels = static_cast<int64_t>(text.priority_levels());
  config->default_priority_level = static_cast<int64_t>(text.default_priority_level());
  BRAID_ASSIGN_OR_RETURN(config->default_queue_policy,
                         ToPolicy(text.default_queue_policy(), text.preserve_ordering(),
                                  "dynamic_batching.default_queue_policy"));
  for (const auto& [level, policy] : text.priority_queue_policy()) {
    BRAID_ASSIGN_OR_RETURN(
        config->priority_queue_policies[static_cast<int64_t>(level)],
        ToPolicy(policy, text.preserve_ordering(),
                 absl::StrCat("dynamic_batching.priority_queue_policy[", level, "]")));
  }
  return absl::OkStatus();
}

// Sections: version_policy and instance_group

absl::StatusOr<InstanceGroup> ToGroup(const inference::ModelInstanceGroup& text,
                                      const std::string& where) {
  // Triton uses the name in its metrics only.
  BRAID_RETURN_IF_ERROR(CheckKnownFields(text, {"name", "kind", "count", "gpus"}, where + "."));
  InstanceGroup group;
  switch (text.kind()) {
    case inference::ModelInstanceGroup::KIND_AUTO:
      group.kind = InstanceGroup::Kind::kAuto;
      break;
    case inference::ModelInstanceGroup::KIND_GPU:
      group.kind = InstanceGroup::Kind::kGpu;
      break;
    case inference::ModelInstanceGroup::KIND_CPU:
      group.kind = InstanceGroup::Kind::kCpu;
      break;
    default:
      return NotImplemented(
          absl::StrCat(where, ".kind: ", inference::ModelInstanceGroup::Kind_Name(text.kind())));
  }
  if (text.count() < 0) {
    return InvalidField(where + ".count", absl::StrCat(text.count(), " (expected at least 1)"));
  }
  group.count = text.count() == 0 ? 1 : text.count();
  std::set<int64_t> gpus;
  for (const int64_t gpu : text.gpus()) {
    if (group.kind == InstanceGroup::Kind::kCpu) {
      return InvalidField(where + ".gpus", "GPUs with KIND_CPU (remove them)");
    }
    if (gpu < 0 || !gpus.insert(gpu).second) {
      return InvalidField(where + ".gpus", absl::StrCat(gpu < 0 ? "invalid" : "duplicate", " GPU ",
                                                        gpu, " (expected distinct GPU indices)"));
    }
    group.gpus.push_back(gpu);
  }
  return group;
}

absl::Status ReadVersionPolicy(const inference::ModelConfig& text, ModelConfig* config) {
  const inference::ModelVersionPolicy& policy = text.version_policy();
  if (policy.has_latest()) {
    if (policy.latest().num_versions() < 1) {
      return InvalidField("version_policy.latest.num_versions",
                          absl::StrCat(policy.latest().num_versions(), " (expected at least 1)"));
    }
    config->version_policy = LatestVersions{policy.latest().num_versions()};
  } else if (policy.has_all()) {
    config->version_policy = AllVersions{};
  } else if (policy.has_specific()) {
    SpecificVersions specific;
    for (const int64_t version : policy.specific().versions()) {
      if (version < 1) {
        return InvalidField("version_policy.specific.versions",
                            absl::StrCat(version, " (expected versions of at least 1)"));
      }
      specific.versions.push_back(version);
    }
    if (specific.versions.empty()) {
      return InvalidField("version_policy.specific.versions",
                          "no versions (expected at least one)");
    }
    config->version_policy = std::move(specific);
  }
  return absl::OkStatus();
}

// Loading the model checks whether this server has the devices.
absl::Status ReadInstanceGroups(const inference::ModelConfig& text, ModelConfig* config) {
  for (int i = 0; i < text.instance_group_size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(InstanceGroup group, ToGroup(text.instance_group(i),
                                                        absl::StrCat("instance_group[", i, "]")));
    config->instance_groups.push_back(std::move(group));
  }
  return absl::OkStatus();
}

// Section: parameters, Braid's own and those of Triton's PyTorch backend

constexpr absl::string_view kBatchDim = "batch_dim.";
constexpr absl::string_view kDecode = "decode.";
constexpr absl::string_view kPad = "pad.";
constexpr absl::string_view kRange = "range.";
constexpr absl::string_view kScalar = "scalar.";
// Reported for published versions, and ignored here: clients may send a reported configuration
// back.
constexpr absl::string_view kOrigin = "origin.";
constexpr absl::string_view kRowIndependence = "row_independence";
// Reported, and ignored here.
constexpr absl::string_view kRowIndependenceReason = "row_independence.reason";

std::string Field(absl::string_view key) {
  return absl::StrCat("parameters[\"", Excerpt(key), "\"]");
}

TensorSpec* FindInput(absl::string_view name, ModelConfig* config) {
  const auto found = std::find_if(config->inputs.begin(), config->inputs.end(),
                                  [name](const TensorSpec& spec) { return spec.name == name; });
  return found == config->inputs.end() ? nullptr : &*found;
}

// Reads the names of broadcast inputs, separated by commas.
absl::Status ReadBroadcast(absl::string_view names, ModelConfig* config) {
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    TensorSpec* const input = FindInput(absl::StripAsciiWhitespace(name), config);
    if (input == nullptr) {
      return InvalidField(Field("broadcast"), absl::StrCat("unknown input '", Excerpt(name),
                                                           "' (expected names of inputs)"));
    }
    input->broadcast = true;
  }
  if (std::all_of(config->inputs.begin(), config->inputs.end(),
                  [](const TensorSpec& spec) { return spec.broadcast; })) {
    return InvalidField(
        Field("broadcast"),
        "all inputs are broadcast (expected at least one that is split along the batch)");
  }
  return absl::OkStatus();
}

// Reads the dim of the batch in the input or output that `key` names, or in both.
absl::Status ReadBatchDim(const std::string& key, absl::string_view value, ModelConfig* config) {
  const absl::string_view name = absl::StripPrefix(key, kBatchDim);
  bool known = false;
  for (std::vector<TensorSpec>* const specs : {&config->inputs, &config->outputs}) {
    for (TensorSpec& spec : *specs) {
      if (spec.name != name) {
        continue;
      }
      known = true;
      // Without batches, dims include that of the batch.
      const size_t rank = spec.dims.size() + (config->batched() ? 1 : 0);
      uint32_t dim = 0;
      if (!absl::SimpleAtoi(value, &dim) || dim >= rank) {
        return InvalidField(Field(key),
                            absl::StrCat("'", Excerpt(value), "' (expected the dim of the batch, ",
                                         "at least 0 and less than ", rank, ", the rank of '",
                                         Excerpt(name), "')"));
      }
      spec.batch_dim = dim;
    }
  }
  return known ? absl::OkStatus()
               : InvalidField(Field(key),
                              absl::StrCat("unknown tensor '", Excerpt(name),
                                           "' (expected batch_dim. and the name of an input or "
                                           "output)"));
}

// Checks batch dims once all settings are read.
absl::Status CheckBatchDims(const ModelConfig& config) {
  for (const std::vector<TensorSpec>* const specs : {&config.inputs, &config.outputs}) {
    for (const TensorSpec& spec : *specs) {
      if (spec.batch_dim == 0) {
        continue;
      }
      const std::string field = Field(absl::StrCat(kBatchDim, spec.name));
      if (!config.batched()) {
        return InvalidField(field,
                            "the model has no batch dimension (expected max_batch_size above 0, or "
                            "row_independence \"dependent\" and dims with -1 for the batch)");
      }
      if (spec.broadcast || spec.reshape) {
        return InvalidField(
            field, absl::StrCat("'", spec.name, "' ",
                                spec.broadcast ? "is broadcast, so it has no batch dimension"
                                               : "has a reshape, which requires the batch as dim 0",
                                " (expected one of the two settings)"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadWeight(absl::string_view value, ModelConfig* config) {
  constexpr double kMin = 1e-3;
  constexpr double kMax = 1e3;
  if (!absl::SimpleAtod(value, &config->weight) || !(config->weight >= kMin) ||
      config->weight > kMax) {
    return InvalidField(Field("weight"), absl::StrCat("'", Excerpt(value), "' (expected a number ",
                                                      kMin, " to ", kMax, ")"));
  }
  return absl::OkStatus();
}

absl::Status ReadChunkRows(absl::string_view value, ModelConfig* config) {
  int64_t rows = 0;
  if (!absl::SimpleAtoi(value, &rows) || rows < 1 || rows > config->max_batch_size) {
    return InvalidField(Field("preferred_chunk_rows"),
                        absl::StrCat("'", Excerpt(value), "' (expected 1 to max_batch_size, ",
                                     config->max_batch_size, ")"));
  }
  config->preferred_chunk_rows = rows;
  return absl::OkStatus();
}

// Accepts also the reported values "proven" and "unproven": the model is tested again.
absl::Status ReadRowIndependence(absl::string_view value, ModelConfig* config) {
  if (value == "assumed" && config->max_batch_size == 0) {
    return InvalidField(Field(kRowIndependence),
                        "'assumed' with max_batch_size: 0, which merges no requests (expected "
                        "max_batch_size above 0, or \"dependent\")");
  }
  if (value == "assumed") {
    config->row_independence = RowIndependence::kAssumed;
  } else if (value == "dependent") {
    config->row_independence = RowIndependence::kDependent;
    config->row_independence_reason = "the configuration says so";
  } else if (value != "proven" && value != "unproven") {
    return InvalidField(Field(kRowIndependence),
                        absl::StrCat("'", Excerpt(value),
                                     "' (expected \"assumed\" to merge and split batches without a "
                                     "test, or \"dependent\" to run each request alone)"));
  }
  return absl::OkStatus();
}

// Returns the values of an integer type, limited to int64; nullopt for other types.
std::optional<ValueRange> RangeOf(DataType type) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  switch (type) {
    case DataType::kUint8:
      return ValueRange{0, std::numeric_limits<uint8_t>::max()};
    case DataType::kUint16:
      return ValueRange{0, std::numeric_limits<uint16_t>::max()};
    case DataType::kUint32:
      return ValueRange{0, std::numeric_limits<uint32_t>::max()};
    case DataType::kUint64:
      return ValueRange{0, kMax};
    case DataType::kInt8:
      return ValueRange{std::numeric_limits<int8_t>::min(), std::numeric_limits<int8_t>::max()};
    case DataType::kInt16:
      return ValueRange{std::numeric_limits<int16_t>::min(), std::numeric_limits<int16_t>::max()};
    case DataType::kInt32:
      return ValueRange{std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case DataType::kInt64:
      return ValueRange{std::numeric_limits<int64_t>::min(), kMax};
    default:
      return std::nullopt;
  }
}

absl::Status ReadRange(const std::string& key, absl::string_view value, ModelConfig* config) {
  const absl::string_view name = absl::StripPrefix(key, kRange);
  TensorSpec* const input = FindInput(name, config);
  if (input == nullptr) {
    return InvalidField(Field(key), absl::StrCat("unknown input '", Excerpt(name),
                                                 "' (expected range. and the name of an input)"));
  }
  const std::optional<ValueRange> possible = RangeOf(input->type);
  if (!possible) {
    return InvalidField(Field(key),
                        absl::StrCat("input '", Excerpt(name), "' is ", DataTypeName(input->type),
                                     " (expected an integer input)"));
  }
  const std::vector<absl::string_view> ends = absl::StrSplit(value, ',');
  ValueRange range;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &range.min) ||
      !absl::SimpleAtoi(ends[1], &range.max) || range.min > range.max ||
      range.min < possible->min || range.max > possible->max) {
    return InvalidField(Field(key),
                        absl::StrCat("'", Excerpt(value), "' (expected \"min,max\" within ",
                                     possible->min, " to ", possible->max, ", both inclusive)"));
  }
  input->range = range;
  return absl::OkStatus();
}

// Checks that the mask of a text is another input, of INT64.
absl::Status CheckMask(const TextSpec& text, const TensorSpec& input, const std::string& field,
                       ModelConfig* config) {
  if (text.mask.empty()) {
    return absl::OkStatus();
  }
  const TensorSpec* const mask = FindInput(text.mask, config);
  if (mask == nullptr || mask == &input) {
    return InvalidField(field, absl::StrCat("'", Excerpt(text.mask), "' is not another input of ",
                                            "the model (expected the name of an INT64 input, "
                                            "other than '",
                                            Excerpt(input.name), "')"));
  }
  if (mask->type != DataType::kInt64) {
    return InvalidField(field, absl::StrCat("input '", text.mask, "' is ", DataTypeName(mask->type),
                                            " (expected INT64)"));
  }
  return absl::OkStatus();
}

// Loading a version checks the decoded rows against the input.
absl::Status ReadDecode(const std::string& key, const std::string& value, ModelConfig* config) {
  const absl::string_view name = absl::StripPrefix(key, kDecode);
  TensorSpec* const input = FindInput(name, config);
  if (input == nullptr) {
    return InvalidField(Field(key), absl::StrCat("unknown input '", Excerpt(name),
                                                 "' (expected decode. and the name of an input)"));
  }
  BRAID_ASSIGN_OR_RETURN(input->decode, ParseDecodeSpec(value, Field(key)));
  input->decode_json = value;
  if (const absl::string_view random = RandomTransform(*input->decode); !random.empty()) {
    return InvalidField(Field(key), absl::StrCat(random,
                                                 " is random (only training jobs can use "
                                                 "random transforms)"));
  }
  const auto* const text = std::get_if<TextSpec>(&*input->decode);
  return text == nullptr ? absl::OkStatus()
                         : CheckMask(*text, *input, Field(key) + ".mask", config);
}

// Loading a version checks the mask, and that the input has a batch dimension.
absl::Status ReadPad(const std::string& key, const std::string& value, ModelConfig* config) {
  const absl::string_view name = absl::StripPrefix(key, kPad);
  TensorSpec* const input = FindInput(name, config);
  if (input == nullptr) {
    return InvalidField(Field(key), absl::StrCat("unknown input '", Excerpt(name),
                                                 "' (expected pad. and the name of an input)"));
  }
  if (input->dims.empty() || input->dims.front() != -1 ||
      std::count(input->dims.begin(), input->dims.end(), -1) > 1) {
    return InvalidField(
        Field(key), absl::StrCat("input '", Excerpt(name), "' has dims ", ShapeString(input->dims),
                                 " (expected -1 as the first, and no other -1)"));
  }
  BRAID_ASSIGN_OR_RETURN(input->pad, ParsePadSpec(value, Field(key)));
  input->pad_json = value;
  return absl::OkStatus();
}

// Returns the parameters of Triton's backend that Braid accepts, with the values that match its
// behaviour.
const std::map<absl::string_view, std::vector<absl::string_view>>& SupportedTritonParameters() {
  static const auto* const kParameters =
      new std::map<absl::string_view, std::vector<absl::string_view>>{
          // Gradients are off in both modes, as in Triton.
          {"INFERENCE_MODE", {"true", "false"}},
          // The optimizing executor is always off (devices/torch_settings.cc). "false" is Triton's
          // default, so it does not request the optimizing executor.
          {"DISABLE_OPTIMIZED_EXECUTION", {"true", "false"}},
          {"ENABLE_JIT_EXECUTOR", {"false"}},
          {"ENABLE_JIT_PROFILING", {"false"}},
          {"ENABLE_NVFUSER", {"false"}},
          {"ENABLE_TENSOR_FUSER", {"false"}},
          {"DISABLE_CUDNN", {"false"}},
          {"ENABLE_WEIGHT_SHARING", {"false"}},
          {"ENABLE_CACHE_CLEANING", {"false"}},
      };
  return *kParameters;
}

absl::Status CheckTritonParameter(const std::string& key, absl::string_view value) {
  const auto known = SupportedTritonParameters().find(key);
  if (known == SupportedTritonParameters().end()) {
    return NotImplemented(Field(key));
  }
  if (!absl::EqualsIgnoreCase(value, "true") && !absl::EqualsIgnoreCase(value, "false")) {
    return InvalidField(Field(key),
                        absl::StrCat("'", Excerpt(value), "' (expected \"true\" or \"false\")"));
  }
  if (std::none_of(known->second.begin(), known->second.end(),
                   [value](absl::string_view supported) {
                     return absl::EqualsIgnoreCase(value, supported);
                   })) {
    return NotImplemented(absl::StrCat(Field(key), ": \"", value, "\""));
  }
  return absl::OkStatus();
}

// Fills `config`, whose inputs and max_batch_size are set. UNIMPLEMENTED for an unknown parameter,
// or for a value that Braid does not support.
absl::Status ReadParameters(const inference::ModelConfig& text, ModelConfig* config) {
  for (const auto& [key, parameter] : text.parameters()) {
    const std::string& value = parameter.string_value();
    if (key == "broadcast") {
      BRAID_RETURN_IF_ERROR(ReadBroadcast(value, config));
    } else if (key == "weight") {
      BRAID_RETURN_IF_ERROR(ReadWeight(value, config));
    } else if (key == "preferred_chunk_rows") {
      BRAID_RETURN_IF_ERROR(ReadChunkRows(value, config));
    } else if (absl::StartsWith(key, kBatchDim)) {
      BRAID_RETURN_IF_ERROR(ReadBatchDim(key, value, config));
    } else if (absl::StartsWith(key, kDecode)) {
      BRAID_RETURN_IF_ERROR(ReadDecode(key, value, config));
    } else if (absl::StartsWith(key, kPad)) {
      BRAID_RETURN_IF_ERROR(ReadPad(key, value, config));
    } else if (absl::StartsWith(key, kRange)) {
      BRAID_RETURN_IF_ERROR(ReadRange(key, value, config));
    } else if (absl::StartsWith(key, kScalar)) {
      config->scalars[key.substr(kScalar.size())] = value;
    } else if (key == kRowIndependence) {
      BRAID_RETURN_IF_ERROR(ReadRowIndependence(value, config));
    } else if (key != kRowIndependenceReason && !absl::StartsWith(key, kOrigin)) {
      BRAID_RETURN_IF_ERROR(CheckTritonParameter(key, value));
    }
  }
  return absl::OkStatus();
}

// Section: model_warmup

// Maximum size of one input of a whole batch.
constexpr size_t kMaxWarmupBytes = size_t{1} << 30;
constexpr uint32_t kMaxRuns = 10000;

absl::StatusOr<Warmup::Input> ToInput(const inference::ModelWarmup::Input& text,
                                      const TensorSpec& spec, int64_t rows,
                                      const std::string& where) {
  const std::string type = absl::StrCat("TYPE_", DataTypeName(spec.type));
  if (inference::DataType_Name(text.data_type()) != type) {
    return InvalidField(
        where + ".data_type",
        absl::StrCat(inference::DataType_Name(text.data_type()), " (expected ", type, ")"));
  }
  Warmup::Input input;
  input.type = spec.type;
  for (const int64_t dim : text.dims()) {
    if (dim < 1) {
      return InvalidField(where + ".dims", absl::StrCat(dim, " (expected sizes of at least 1)"));
    }
    input.dims.push_back(dim);
  }
  std::vector<int64_t> shape = input.dims;
  shape.push_back(std::max<int64_t>(rows, 1));
  const std::optional<size_t> bytes = BytesOf(input.type, shape);
  if (!bytes || *bytes > kMaxWarmupBytes) {
    return InvalidField(where + ".dims",
                        absl::StrCat(ShapeString(input.dims), " for ", rows,
                                     " rows (expected at most ", kMaxWarmupBytes, " bytes)"));
  }
  switch (text.input_data_type_case()) {
    case inference::ModelWarmup::Input::kZeroData:
      input.fill = Warmup::Fill::kZero;
      break;
    case inference::ModelWarmup::Input::kRandomData:
      input.fill = Warmup::Fill::kRandom;
      break;
    case inference::ModelWarmup::Input::kInputDataFile:
      input.fill = Warmup::Fill::kFile;
      input.file = text.input_data_file();
      if (!IsFolderName(input.file)) {
        return InvalidField(where + ".input_data_file",
                            absl::StrCat("'", Excerpt(input.file),
                                         "' (expected the name of a file in the model's folder "
                                         "warmup)"));
      }
      break;
    default:
      return InvalidField(where, "no data (expected zero_data, random_data or input_data_file)");
  }
  return input;
}

absl::StatusOr<Warmup> ToWarmup(const inference::ModelWarmup& text, const ModelConfig& config,
                                const std::string& where) {
  Warmup warmup;
  warmup.name = text.name();
  warmup.batch_size = text.batch_size();
  if (warmup.batch_size > std::max<int64_t>(config.max_batch_size, 1)) {
    return InvalidField(
        where + ".batch_size",
        absl::StrCat(warmup.batch_size, " (expected ",
                     config.batched() ? absl::StrCat("1 to max_batch_size, ", config.max_batch_size)
                                      : "0 or 1: the model is not batched",
                     ")"));
  }
  if (text.count() > kMaxRuns) {
    return InvalidField(where + ".count",
                        absl::StrCat(text.count(), " (expected at most ", kMaxRuns, ")"));
  }
  warmup.count = text.count() == 0 ? 1 : text.count();
  for (const auto& [name, input] : text.inputs()) {
    const auto spec = std::find_if(config.inputs.begin(), config.inputs.end(),
                                   [&name = name](const TensorSpec& s) { return s.name == name; });
    const std::string field = absl::StrCat(where, ".inputs[\"", Excerpt(name), "\"]");
    if (spec == config.inputs.end()) {
      return InvalidField(field, "the model has no such input");
    }
    const int64_t rows = spec->broadcast ? 1 : warmup.batch_size;
    BRAID_ASSIGN_OR_RETURN(warmup.inputs[name], ToInput(input, *spec, rows, field));
  }
  for (const TensorSpec& spec : config.inputs) {
    if (warmup.inputs.count(spec.name) == 0 && !spec.scalar) {
      return InvalidField(where + ".inputs", absl::StrCat("input '", spec.name, "' is missing"));
    }
  }
  return warmup;
}

// Fills `config`, whose inputs and max_batch_size are set. Shapes are checked when the requests are
// built.
absl::Status ReadWarmups(const inference::ModelConfig& text, ModelConfig* config) {
  for (int i = 0; i < text.model_warmup_size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(Warmup warmup, ToWarmup(text.model_warmup(i), *config,
                                                   absl::StrCat("model_warmup[", i, "]")));
    if (config->batched() && warmup.batch_size == 0) {
      continue;  // A request without rows. Triton skips it, too.
    }
    config->warmups.push_back(std::move(warmup));
  }
  return absl::OkStatus();
}

// The whole file

constexpr uintmax_t kMaxConfigBytes = 1 << 20;
// Maximum nesting of messages. No setting is deeper.
constexpr int kMaxNesting = 32;

class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (first_.empty()) {
      first_ = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
    }
  }
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

absl::Status CheckPlatform(const inference::ModelConfig& config) {
  const std::string& platform = config.platform();
  if (!platform.empty() && platform != "pytorch_libtorch" && platform != "torch_aoti") {
    return InvalidField(
        "platform",
        absl::StrCat("'", Excerpt(platform), "' (expected 'pytorch_libtorch' or 'torch_aoti')"));
  }
  if (!config.backend().empty() && config.backend() != "pytorch") {
    return InvalidField("backend",
                        absl::StrCat("'", Excerpt(config.backend()), "' (expected 'pytorch')"));
  }
  if (!config.default_model_filename().empty() && !IsFolderName(config.default_model_filename())) {
    return InvalidField("default_model_filename",
                        absl::StrCat("'", Excerpt(config.default_model_filename()),
                                     "' (expected the name of a file in the version's folder)"));
  }
  return absl::OkStatus();
}

// Accepts the optimization settings that match Braid's behaviour.
absl::Status CheckOptimization(const inference::ModelConfig& config) {
  const inference::ModelOptimizationPolicy& optimization = config.optimization();
  BRAID_RETURN_IF_ERROR(CheckKnownFields(
      optimization, {"input_pinned_memory", "output_pinned_memory"}, "optimization."));
  if ((optimization.has_input_pinned_memory() && !optimization.input_pinned_memory().enable()) ||
      (optimization.has_output_pinned_memory() && !optimization.output_pinned_memory().enable())) {
    return NotImplemented("optimization: disabled pinned memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> Convert(const inference::ModelConfig& text, const std::string& name,
                                    const std::string& folder) {
  BRAID_RETURN_IF_ERROR(
      CheckKnownFields(text,
                       {"name", "platform", "backend", "default_model_filename", "max_batch_size",
                        "input", "output", "instance_group", "version_policy", "dynamic_batching",
                        "model_warmup", "optimization", "parameters"},
                       ""));
  BRAID_RETURN_IF_ERROR(CheckPlatform(text));
  BRAID_RETURN_IF_ERROR(CheckOptimization(text));
  if (!text.name().empty() && text.name() != name) {
    return InvalidField(
        "name", absl::StrCat("'", Excerpt(text.name()), "' (expected the folder's name, '", name,
                             "', or no name)"));
  }
  if (text.max_batch_size() < 0) {
    return InvalidField("max_batch_size",
                        absl::StrCat(text.max_batch_size(), " (expected 0, not batched, or more)"));
  }
  ModelConfig config;
  config.name = name;
  config.max_batch_size = text.max_batch_size();
  config.batching_declared = config.batched();
  config.model_filename = text.default_model_filename();
  if (config.model_filename.empty() && text.platform() == "torch_aoti") {
    config.model_filename = "model.pt2";
  }
  BRAID_ASSIGN_OR_RETURN(config.inputs, ReadInputSpecs(text));
  BRAID_ASSIGN_OR_RETURN(config.outputs, ReadOutputSpecs(text, folder));
  BRAID_RETURN_IF_ERROR(ReadDynamicBatching(text.dynamic_batching(), &config));
  BRAID_RETURN_IF_ERROR(ReadVersionPolicy(text, &config));
  BRAID_RETURN_IF_ERROR(ReadInstanceGroups(text, &config));
  BRAID_RETURN_IF_ERROR(ReadParameters(text, &config));
  BRAID_RETURN_IF_ERROR(ReadWarmups(text, &config));
  if (config.row_independence == RowIndependence::kDependent && !config.batched()) {
    // Has no effect if a tensor has no batch dimension: the model stays unbatched.
    SeparateBatchDim(config.row_independence_reason, &config);
  }
  BRAID_RETURN_IF_ERROR(CheckBatchDims(config));
  return config;
}

// Converts `message`. Errors begin with `source`.
absl::StatusOr<ModelConfig> Check(const inference::ModelConfig& message, const std::string& name,
                                  const std::string& folder, absl::string_view source) {
  // Names are sent to clients in messages that must be UTF-8.
  if (inference::ModelConfig again; !again.ParseFromString(message.SerializeAsString())) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": text is not UTF-8"));
  }
  absl::StatusOr<ModelConfig> config = Convert(message, name, folder);
  if (!config.ok()) {
    return absl::Status(config.status().code(),
                        absl::StrCat(source, ": ", config.status().message()));
  }
  return config;
}

absl::Status CheckSize(uintmax_t bytes, absl::string_view source) {
  if (bytes > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": ", bytes, " bytes (expected at most ", kMaxConfigBytes, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseConfig(const std::string& text, const std::string& name,
                                        const std::string& folder) {
  constexpr absl::string_view kSource = "config.pbtxt";
  BRAID_RETURN_IF_ERROR(CheckSize(text.size(), kSource));
  inference::ModelConfig message;
  FirstError errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(kMaxNesting);
  // Some editors write a byte-order mark.
  const std::string unmarked(absl::StripPrefix(text, "\xEF\xBB\xBF"));
  if (!parser.ParseFromString(unmarked, &message)) {
    return absl::InvalidArgumentError(absl::StrCat(kSource, ": ", Excerpt(errors.first(), 512)));
  }
  return Check(message, name, folder, kSource);
}

absl::StatusOr<ModelConfig> ParseConfigJson(const std::string& json, const std::string& folder,
                                            const std::string& name) {
  constexpr absl::string_view kSource = "parameters[\"config\"]";
  BRAID_RETURN_IF_ERROR(CheckSize(json.size(), kSource));
  inference::ModelConfig message;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &message);
  if (!parsed.ok()) {
    const std::string why(parsed.message());
    return InvalidField(
        kSource, absl::StrCat(Excerpt(why, 512), " (expected a model configuration in JSON)"));
  }
  if (message.input().empty() || message.output().empty()) {
    return InvalidField(
        kSource,
        absl::StrCat("'", message.input().empty() ? "input" : "output",
                     "' is missing (it replaces the whole configuration: read the current one "
                     "with ModelConfig, change it, and send all of it)"));
  }
  return Check(message, name, folder, kSource);
}

absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, const std::string& name) {
  std::error_code error;
  // Fails unless it is a regular file. Opening a pipe would block until another process writes.
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", error.message()));
  }
  BRAID_RETURN_IF_ERROR(CheckSize(bytes, "config.pbtxt"));
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  std::stringstream text;
  text << file.rdbuf();
  return ParseConfig(text.str(), name, std::filesystem::path(path).parent_path());
}

}  // namespace braid
