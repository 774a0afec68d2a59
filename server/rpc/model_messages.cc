#include "server/rpc/model_messages.h"

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

constexpr char kPlatform[] = "pytorch_libtorch";
constexpr char kBackend[] = "pytorch";

template <typename Tensors>
void AddMetadata(const ModelConfig& config, const std::vector<TensorSpec>& specs,
                 Tensors* messages) {
  for (const TensorSpec& spec : specs) {
    if (spec.scalar) {
      continue;  // a request's parameter
    }
    auto* message = messages->Add();
    message->set_name(spec.name);
    message->set_datatype(std::string(DataTypeName(spec.type)));
    if (config.has_batch_dim(spec)) {
      message->add_shape(-1);
    }
    message->mutable_shape()->Add(spec.dims.begin(), spec.dims.end());
  }
}

template <typename Tensors>
void AddConfig(const std::vector<TensorSpec>& specs, Tensors* messages) {
  for (const TensorSpec& spec : specs) {
    if (spec.scalar) {
      continue;  // a request's parameter
    }
    auto* message = messages->Add();
    message->set_name(spec.name);
    inference::DataType type = inference::TYPE_INVALID;
    inference::DataType_Parse(absl::StrCat("TYPE_", DataTypeName(spec.type)), &type);
    message->set_data_type(type);
    message->mutable_dims()->Add(spec.dims.begin(), spec.dims.end());
  }
}

// "INT64, default 3".
std::string DescribeScalar(const TensorSpec& spec) {
  const absl::string_view type = DataTypeName(spec.type);
  if (!spec.default_value) {
    return std::string(type);
  }
  if (const bool* flag = std::get_if<bool>(&*spec.default_value)) {
    return absl::StrCat(type, ", default ", *flag ? "true" : "false");
  }
  const auto* whole = std::get_if<int64_t>(&*spec.default_value);
  return whole != nullptr ? absl::StrCat(type, ", default ", *whole)
                          : absl::StrCat(type, ", default ", std::get<double>(*spec.default_value));
}

}  // namespace

absl::StatusOr<int64_t> ParseVersion(const std::string& version, absl::string_view field) {
  int64_t number = 0;
  if (version.empty()) {
    return 0;
  }
  if (!absl::SimpleAtoi(version, &number) || number < 1) {
    return InvalidField(field,
                        absl::StrCat("'", Excerpt(version),
                                     "' is no version; expected a number from 1, or nothing"));
  }
  return number;
}

void FillMetadata(const ModelConfig& config, int64_t version,
                  inference::ModelMetadataResponse* response) {
  response->set_name(config.name);
  response->add_versions(absl::StrCat(version));
  response->set_platform(kPlatform);
  AddMetadata(config, config.inputs, response->mutable_inputs());
  AddMetadata(config, config.outputs, response->mutable_outputs());
}

void FillConfig(const ModelConfig& config, inference::ModelConfig* message) {
  message->set_name(config.name);
  message->set_platform(kPlatform);
  message->set_backend(kBackend);
  message->set_max_batch_size(static_cast<int32_t>(config.max_batch_size));
  AddConfig(config.inputs, message->mutable_input());
  AddConfig(config.outputs, message->mutable_output());
  std::vector<std::string> broadcast;
  for (const TensorSpec& input : config.inputs) {
    if (input.scalar) {
      (*message->mutable_parameters())[absl::StrCat("scalar.", input.name)].set_string_value(
          DescribeScalar(input));
    } else if (input.broadcast) {
      broadcast.push_back(input.name);
    }
  }
  if (!broadcast.empty()) {
    (*message->mutable_parameters())["broadcast"].set_string_value(absl::StrJoin(broadcast, ","));
  }
  for (const auto& [key, value] : config.origin) {
    (*message->mutable_parameters())[absl::StrCat("origin.", key)].set_string_value(value);
  }
  if (config.batched()) {
    message->mutable_dynamic_batching()->set_max_queue_delay_microseconds(
        static_cast<uint64_t>(absl::ToInt64Microseconds(config.max_queue_delay)));
  }
}

}  // namespace braid
