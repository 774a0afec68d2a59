#include "server/models/config/config_parameters.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/config/config_fields.h"

namespace braid {
namespace {

constexpr absl::string_view kRange = "range.";
constexpr absl::string_view kScalar = "scalar.";
// What ModelConfig tells of a published version, and what may come back: it is not configured.
constexpr absl::string_view kOrigin = "origin.";
constexpr absl::string_view kRowIndependence = "row_independence";
// The evidence, which ModelConfig tells.
constexpr absl::string_view kRowIndependenceReason = "row_independence.reason";

std::string Field(absl::string_view key) {
  return absl::StrCat("parameters[\"", Excerpt(key), "\"]");
}

TensorSpec* FindInput(absl::string_view name, ModelConfig* config) {
  const auto found = std::find_if(config->inputs.begin(), config->inputs.end(),
                                  [name](const TensorSpec& spec) { return spec.name == name; });
  return found == config->inputs.end() ? nullptr : &*found;
}

// Names of inputs, separated by commas, that every replica gets whole.
absl::Status ReadBroadcast(absl::string_view names, ModelConfig* config) {
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    TensorSpec* const input = FindInput(absl::StripAsciiWhitespace(name), config);
    if (input == nullptr) {
      return InvalidField(Field("broadcast"), absl::StrCat("'", Excerpt(name),
                                                           "' is no input; expected names of "
                                                           "inputs"));
    }
    input->broadcast = true;
  }
  if (std::all_of(config->inputs.begin(), config->inputs.end(),
                  [](const TensorSpec& spec) { return spec.broadcast; })) {
    return InvalidField(Field("broadcast"),
                        "names every input; expected at least one to be cut along dim 0");
  }
  return absl::OkStatus();
}

absl::Status ReadWeight(absl::string_view value, ModelConfig* config) {
  constexpr double kLeast = 1e-3;
  constexpr double kMost = 1e3;
  if (!absl::SimpleAtod(value, &config->weight) || !(config->weight >= kLeast) ||
      config->weight > kMost) {
    return InvalidField(Field("weight"), absl::StrCat("'", Excerpt(value), "'; expected a number ",
                                                      kLeast, " to ", kMost));
  }
  return absl::OkStatus();
}

absl::Status ReadChunkRows(absl::string_view value, ModelConfig* config) {
  int64_t rows = 0;
  if (!absl::SimpleAtoi(value, &rows) || rows < 1 || rows > config->max_batch_size) {
    return InvalidField(
        Field("preferred_chunk_rows"),
        absl::StrCat("'", Excerpt(value), "'; expected 1 to max_batch_size, which is ",
                     config->max_batch_size));
  }
  config->preferred_chunk_rows = rows;
  return absl::OkStatus();
}

// Accepts the other values that ModelConfig reports, and tests again.
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

// What fits into an integer type, as far as an int64 tells it; nullopt for other types.
std::optional<ValueRange> RangeOf(DataType type) {
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  switch (type) {
    case DataType::kUint8:
      return ValueRange{0, std::numeric_limits<uint8_t>::max()};
    case DataType::kUint16:
      return ValueRange{0, std::numeric_limits<uint16_t>::max()};
    case DataType::kUint32:
      return ValueRange{0, std::numeric_limits<uint32_t>::max()};
    case DataType::kUint64:
      return ValueRange{0, kMost};
    case DataType::kInt8:
      return ValueRange{std::numeric_limits<int8_t>::min(), std::numeric_limits<int8_t>::max()};
    case DataType::kInt16:
      return ValueRange{std::numeric_limits<int16_t>::min(), std::numeric_limits<int16_t>::max()};
    case DataType::kInt32:
      return ValueRange{std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case DataType::kInt64:
      return ValueRange{std::numeric_limits<int64_t>::min(), kMost};
    default:
      return std::nullopt;
  }
}

absl::Status ReadRange(const std::string& key, absl::string_view value, ModelConfig* config) {
  const absl::string_view name = absl::StripPrefix(key, kRange);
  TensorSpec* const input = FindInput(name, config);
  if (input == nullptr) {
    return InvalidField(Field(key), absl::StrCat("'", Excerpt(name),
                                                 "' is no input; expected range. and an input's "
                                                 "name"));
  }
  const std::optional<ValueRange> possible = RangeOf(input->type);
  if (!possible) {
    return InvalidField(Field(key),
                        absl::StrCat("input '", Excerpt(name), "' is ", DataTypeName(input->type),
                                     "; expected one of integers"));
  }
  const std::vector<absl::string_view> ends = absl::StrSplit(value, ',');
  ValueRange range;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &range.min) ||
      !absl::SimpleAtoi(ends[1], &range.max) || range.min > range.max ||
      range.min < possible->min || range.max > possible->max) {
    return InvalidField(Field(key), absl::StrCat("'", Excerpt(value),
                                                 "'; expected \"min,max\", both included, within ",
                                                 possible->min, " to ", possible->max));
  }
  input->range = range;
  return absl::OkStatus();
}

// Parameters of Triton's backend, and the values that say what is done here anyway.
const std::map<absl::string_view, std::vector<absl::string_view>>& AsItIs() {
  static const auto* const kParameters =
      new std::map<absl::string_view, std::vector<absl::string_view>>{
          // No gradients in either mode, as there.
          {"INFERENCE_MODE", {"true", "false"}},
          // The optimizing executor is off (devices/thread_setup.cc). Who does not ask for that
          // asks for nothing else: it is Triton's default.
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

absl::Status CheckTritons(const std::string& key, absl::string_view value) {
  const auto known = AsItIs().find(key);
  if (known == AsItIs().end()) {
    return NotImplemented(Field(key));
  }
  if (!absl::EqualsIgnoreCase(value, "true") && !absl::EqualsIgnoreCase(value, "false")) {
    return InvalidField(Field(key),
                        absl::StrCat("'", Excerpt(value), "'; expected \"true\" or \"false\""));
  }
  if (std::none_of(known->second.begin(), known->second.end(), [value](absl::string_view as_it_is) {
        return absl::EqualsIgnoreCase(value, as_it_is);
      })) {
    return NotImplemented(absl::StrCat(Field(key), ": \"", value, "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadParameters(const inference::ModelConfig& text, ModelConfig* config) {
  for (const auto& [key, parameter] : text.parameters()) {
    const std::string& value = parameter.string_value();
    if (key == "broadcast") {
      BRAID_RETURN_IF_ERROR(ReadBroadcast(value, config));
    } else if (key == "weight") {
      BRAID_RETURN_IF_ERROR(ReadWeight(value, config));
    } else if (key == "preferred_chunk_rows") {
      BRAID_RETURN_IF_ERROR(ReadChunkRows(value, config));
    } else if (absl::StartsWith(key, kRange)) {
      BRAID_RETURN_IF_ERROR(ReadRange(key, value, config));
    } else if (absl::StartsWith(key, kScalar)) {
      config->scalars[key.substr(kScalar.size())] = value;
    } else if (key == kRowIndependence) {
      BRAID_RETURN_IF_ERROR(ReadRowIndependence(value, config));
    } else if (key != kRowIndependenceReason && !absl::StartsWith(key, kOrigin)) {
      BRAID_RETURN_IF_ERROR(CheckTritons(key, value));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
