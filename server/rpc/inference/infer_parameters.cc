#include "server/rpc/inference/infer_parameters.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

using inference::InferParameter;

// True unless the value is false, 0 or "", which equals a missing parameter.
bool IsSet(const InferParameter& parameter) {
  return parameter.bool_param() || parameter.int64_param() != 0 || parameter.uint64_param() != 0 ||
         parameter.double_param() != 0 || !parameter.string_param().empty();
}

template <typename Value>
void SetValue(Value value, HostTensor* tensor) {
  const auto held = std::make_shared<Value>(value);
  tensor->data = held.get();
  tensor->bytes = sizeof(Value);
  tensor->owner = held;
}

absl::StatusOr<HostTensor> ReadScalar(const TensorSpec& spec, const InferParameter& parameter) {
  const std::string field = ParameterField("", spec.name);
  HostTensor tensor;
  tensor.name = spec.name;
  tensor.type = spec.type;
  tensor.broadcast = true;
  switch (spec.type) {
    case DataType::kInt64: {
      BRAID_ASSIGN_OR_RETURN(const int64_t value, ReadInteger(parameter, field));
      SetValue(value, &tensor);
      return tensor;
    }
    case DataType::kBool: {
      BRAID_ASSIGN_OR_RETURN(const bool value, ReadBool(parameter, field));
      SetValue(value, &tensor);
      return tensor;
    }
    case DataType::kFp64: {
      BRAID_ASSIGN_OR_RETURN(const double value, ReadNumber(parameter, field));
      SetValue(value, &tensor);
      return tensor;
    }
    default:
      return absl::InternalError(
          absl::StrCat("argument '", spec.name, "' is ", DataTypeName(spec.type)));
  }
}

}  // namespace

absl::Status CheckParameters(const Parameters& parameters) {
  for (const auto& [name, parameter] : parameters) {
    const bool sequence =
        name == "sequence_id" || name == "sequence_start" || name == "sequence_end";
    if (sequence && IsSet(parameter)) {
      return absl::UnimplementedError(absl::StrCat(
          "parameters.", name, ": sequences are not supported (requests are independent)"));
    }
    if (name == "report_split" || name == "report_step") {
      BRAID_RETURN_IF_ERROR(ReadBool(parameter, ParameterField("", name)).status());
    }
    // This parameter has no effect: models reply once (none are decoupled).
    if (absl::StartsWith(name, "triton_") && name != "triton_enable_empty_final_response") {
      return absl::UnimplementedError(
          absl::StrCat("parameters.", Excerpt(name), ": reserved by Triton and not supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<InferenceRequest::Schedule> ReadSchedule(const Parameters& parameters,
                                                        absl::Time deadline) {
  InferenceRequest::Schedule schedule;
  schedule.arrival = absl::Now();
  schedule.deadline = deadline;
  BRAID_ASSIGN_OR_RETURN(const int64_t priority, ReadIntegerOr(parameters, "", "priority", 0));
  BRAID_ASSIGN_OR_RETURN(const int64_t timeout, ReadIntegerOr(parameters, "", "timeout", 0));
  if (priority < 0) {
    return InvalidField(
        "parameters.priority",
        absl::StrCat(priority,
                     " is negative (expected 1, the most urgent, or more; 0 for the "
                     "model's default)"));
  }
  if (timeout < 0) {
    return InvalidField(
        "parameters.timeout",
        absl::StrCat(timeout, " is negative (expected microseconds; 0 for the model's default)"));
  }
  schedule.priority = priority;
  schedule.timeout = absl::Microseconds(timeout);
  return schedule;
}

absl::Status AddScalars(const ModelConfig& config, const Parameters& parameters,
                        std::vector<HostTensor>* tensors) {
  const size_t received = tensors->size();
  for (const TensorSpec& spec : config.inputs) {
    if (!spec.scalar) {
      continue;
    }
    for (size_t i = 0; i < received; ++i) {
      if ((*tensors)[i].name == spec.name) {
        return InvalidField(absl::StrCat("inputs[", i, "].name"),
                            absl::StrCat("'", spec.name,
                                         "' is a scalar, not a tensor (send it as the request "
                                         "parameter of that name)"));
      }
    }
    const InferParameter* parameter = FindParameter(parameters, spec.name);
    if (parameter == nullptr) {
      continue;  // CheckInputs() handles missing inputs
    }
    BRAID_ASSIGN_OR_RETURN(HostTensor tensor, ReadScalar(spec, *parameter));
    tensors->push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

}  // namespace braid
