#include "server/models/config/version_config.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"

namespace braid {
namespace {

// Fields that must be equal so that a replica for one spec can serve the other.
auto Interface(const TensorSpec& spec) {
  return std::tie(spec.name, spec.type, spec.dims, spec.broadcast, spec.batch_dim, spec.reshape);
}

std::string Describe(const TensorSpec& spec) {
  return absl::StrCat(
      "'", spec.name, "' ", DataTypeName(spec.type), ShapeString(spec.dims),
      spec.broadcast ? ", broadcast" : "",
      spec.batch_dim > 0 ? absl::StrCat(", batch at dim ", spec.batch_dim) : "",
      spec.reshape ? absl::StrCat(", reshaped to ", ShapeString(*spec.reshape)) : "");
}

std::string Describe(const std::vector<TensorSpec>& specs, size_t i) {
  return i < specs.size() ? Describe(specs[i]) : "none";
}

absl::Status CheckSameInterface(absl::string_view kind, const ModelConfig& config,
                                const std::vector<TensorSpec>& was,
                                const std::vector<TensorSpec>& is) {
  for (size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
    if (i >= was.size() || i >= is.size() || Interface(was[i]) != Interface(is[i])) {
      return absl::FailedPreconditionError(absl::StrCat(
          "model '", config.name, "' has an incompatible configuration: ", kind, "[", i, "] is ",
          Describe(is, i), " (expected ", Describe(was, i), ", as when the trainer was created)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ModelConfig DeclaredConfig(ModelConfig config) {
  std::erase_if(config.inputs, [](const TensorSpec& input) { return input.scalar; });
  for (TensorSpec& input : config.inputs) {
    if (std::exchange(input.range_derived, false)) {
      input.range.reset();
    }
  }
  config.scalars.clear();
  return config;
}

absl::StatusOr<ModelConfig> ApplyCurrentConfig(const ModelConfig& config,
                                               const ModelConfig& current) {
  if (config.batched() != current.batched()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model '", config.name, "' has an incompatible configuration: max_batch_size is ",
        current.max_batch_size, " (expected ", config.max_batch_size,
        ", as when the trainer was created)"));
  }
  const ModelConfig declared = DeclaredConfig(current);
  BRAID_RETURN_IF_ERROR(
      CheckSameInterface("input", config, DeclaredConfig(config).inputs, declared.inputs));
  BRAID_RETURN_IF_ERROR(CheckSameInterface("output", config, config.outputs, declared.outputs));
  ModelConfig result = current;
  result.inputs = config.inputs;
  for (TensorSpec& input : result.inputs) {
    const auto same = std::find_if(declared.inputs.begin(), declared.inputs.end(),
                                   [&](const TensorSpec& spec) { return spec.name == input.name; });
    if (same == declared.inputs.end()) {
      continue;  // a scalar
    }
    if (same->range || !input.range_derived) {
      input.range = same->range;
      input.range_derived = false;
    }
    input.decode = same->decode;
    input.decode_json = same->decode_json;
    input.decoder = same->decoder;
    input.pad = same->pad;
    input.pad_json = same->pad_json;
    input.padding = same->padding;
  }
  return result;
}

}  // namespace braid
