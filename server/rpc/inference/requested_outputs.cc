#include "server/rpc/inference/requested_outputs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/batch_layout.h"
#include "server/rpc/inference/classification.h"
#include "server/rpc/inference/parameter.h"
#include "server/rpc/inference/shared_memory.h"
#include "server/rpc/inference/tensor_codec.h"

namespace braid {
namespace {

constexpr char kClassification[] = "classification";

absl::StatusOr<int64_t> ReadClasses(const TensorSpec& spec, const Parameters& parameters,
                                    const std::string& field) {
  if (FindParameter(parameters, kClassification) == nullptr) {
    return 0;
  }
  const std::string parameter = ParameterField(field, kClassification);
  BRAID_ASSIGN_OR_RETURN(const int64_t classes,
                         ReadIntegerOr(parameters, field, kClassification, 0));
  if (classes < 0) {
    return InvalidField(parameter, absl::StrCat(classes, " is negative (expected at least 0)"));
  }
  if (classes > 0 && !CanClassify(spec.type)) {
    return InvalidField(parameter,
                        absl::StrCat("output '", spec.name, "' is ", DataTypeName(spec.type),
                                     ", which has no classes (expected an output of integers, FP32 "
                                     "or FP64)"));
  }
  return classes;
}

absl::StatusOr<RequestedOutput> ReadOutput(
    const ModelConfig& config,
    const inference::ModelInferRequest::InferRequestedOutputTensor& output,
    const SharedRegions* regions, const std::string& field) {
  const auto found = std::find_if(config.outputs.begin(), config.outputs.end(),
                                  [&](const TensorSpec& s) { return s.name == output.name(); });
  if (found == config.outputs.end()) {
    const auto name = [](std::string* out, const TensorSpec& spec) {
      absl::StrAppend(out, "'", spec.name, "'");
    };
    return InvalidField(
        field + ".name",
        absl::StrCat("model '", config.name, "' has no output '", Excerpt(output.name()),
                     "' (expected ", absl::StrJoin(config.outputs, ", ", name), ")"));
  }
  RequestedOutput wanted;
  wanted.index = static_cast<size_t>(found - config.outputs.begin());
  BRAID_ASSIGN_OR_RETURN(wanted.classes, ReadClasses(*found, output.parameters(), field));
  BRAID_ASSIGN_OR_RETURN(wanted.memory, ReadSlice(regions, output.parameters(), field));
  if (found->scalar && (wanted.classes > 0 || wanted.memory.region != nullptr)) {
    return InvalidField(field, absl::StrCat("output '", found->name,
                                            "' is a number, returned as a response parameter "
                                            "(no classification or shared memory)"));
  }
  if (wanted.classes > 0 && wanted.memory.region != nullptr) {
    return InvalidField(ParameterField(field, kClassification),
                        "cannot be combined with shared memory (expected one of the two)");
  }
  return wanted;
}

// Writes `tensor` into shared memory. As in Triton, the reply names the region and has empty
// contents.
absl::Status WriteShared(const GatheredTensor& tensor, const SharedSlice& memory,
                         inference::ModelInferResponse* response) {
  if (tensor.bytes > memory.bytes) {
    return InvalidField(kSharedBytes,
                        absl::StrCat("is ", memory.bytes, " for output '", tensor.name,
                                     "' (expected at least ", tensor.bytes, ")"));
  }
  size_t written = 0;
  for (const HostTensor& piece : tensor.pieces) {
    BRAID_RETURN_IF_ERROR(memory.Write(written, piece.bytes, piece.data));
    written += piece.bytes;
  }
  BRAID_RETURN_IF_ERROR(CheckWhole(memory));
  auto* output = AddOutput(tensor.name, DataTypeName(tensor.type), tensor.shape, response);
  auto& parameters = *output->mutable_parameters();
  parameters[kSharedRegion].set_string_param(memory.region->name);
  parameters[kSharedBytes].set_int64_param(static_cast<int64_t>(tensor.bytes));
  if (memory.offset != 0) {
    parameters[kSharedOffset].set_int64_param(static_cast<int64_t>(memory.offset));
  }
  response->add_raw_output_contents();
  return absl::OkStatus();
}

// Writes a number, a tensor of one element, as a parameter with the output's name.
void WriteNumber(const GatheredTensor& tensor, inference::ModelInferResponse* response) {
  inference::InferParameter& parameter = (*response->mutable_parameters())[tensor.name];
  const void* const data = tensor.pieces.front().data;
  switch (tensor.type) {
    case DataType::kBool:
      parameter.set_bool_param(*static_cast<const bool*>(data));
      break;
    case DataType::kInt64:
      parameter.set_int64_param(*static_cast<const int64_t*>(data));
      break;
    default:  // Python has no other number types.
      parameter.set_double_param(*static_cast<const double*>(data));
  }
}

}  // namespace

absl::StatusOr<std::vector<RequestedOutput>> ReadRequestedOutputs(
    const ModelConfig& config, const inference::ModelInferRequest& request,
    const SharedRegions* regions) {
  std::vector<RequestedOutput> wanted;
  for (int i = 0; i < request.outputs_size(); ++i) {
    const std::string field = absl::StrCat("outputs[", i, "]");
    BRAID_ASSIGN_OR_RETURN(RequestedOutput output,
                           ReadOutput(config, request.outputs(i), regions, field));
    for (const RequestedOutput& other : wanted) {
      if (other.index == output.index) {
        return InvalidField(field + ".name", absl::StrCat("output '", request.outputs(i).name(),
                                                          "' is listed twice (expected once)"));
      }
    }
    wanted.push_back(std::move(output));
  }
  for (size_t o = 0; request.outputs_size() == 0 && o < config.outputs.size(); ++o) {
    wanted.push_back({o, 0, {}});
  }
  return wanted;
}

absl::Status WriteOutputs(const ModelConfig& config, const InferenceResult& result,
                          const std::vector<RequestedOutput>& wanted,
                          inference::ModelInferResponse* response) {
  for (const RequestedOutput& output : wanted) {
    const TensorSpec& spec = config.outputs[output.index];
    const GatheredTensor& rows = result.outputs[output.index];
    if (spec.scalar) {
      WriteNumber(rows, response);
      continue;
    }
    if (output.classes > 0) {
      WriteClasses(rows, spec, config.batched(), output.classes, response);
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const GatheredTensor tensor, BatchFromFront(rows, spec.batch_dim));
    if (output.memory.region != nullptr) {
      BRAID_RETURN_IF_ERROR(WriteShared(tensor, output.memory, response));
    } else {
      WriteOutput(tensor, response);
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
