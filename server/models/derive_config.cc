#include "server/models/derive_config.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "ATen/ops/cat.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/models/torchscript_io.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

using torch::jit::Module;

// What torch.utils.bundled_inputs adds to a module.
constexpr char kExampleMethod[] = "get_all_bundled_inputs";

absl::StatusOr<std::vector<at::Tensor>> RecordedExample(Module& module,
                                                        const std::vector<std::string>& arguments) {
  const auto method = module.find_method(kExampleMethod);
  if (!method) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is neither a config.pbtxt nor a recorded example to derive inputs and "
                     "outputs of forward(",
                     absl::StrJoin(arguments, ", "),
                     ") from: write config.pbtxt, or record one with torch.utils.bundled_inputs"));
  }
  const c10::IValue examples = (*method)({});
  std::vector<at::Tensor> tensors;
  if (examples.isList() && !examples.toListRef().empty() && examples.toListRef()[0].isTuple()) {
    for (const c10::IValue& value : examples.toListRef()[0].toTupleRef().elements()) {
      if (value.isTensor()) {
        tensors.push_back(value.toTensor());
      }
    }
  }
  if (tensors.size() != arguments.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the recorded example holds ", tensors.size(), " tensors; forward(",
                     absl::StrJoin(arguments, ", "), ") takes ", arguments.size()));
  }
  return tensors;
}

absl::StatusOr<std::vector<OutputLeaf>> Run(Module& module, const std::vector<at::Tensor>& inputs) {
  return Flatten(module.forward({inputs.begin(), inputs.end()}));
}

// Whether twice the rows give twice the rows.
bool IsBatched(Module& module, const std::vector<at::Tensor>& inputs,
               const std::vector<OutputLeaf>& outputs) {
  std::vector<at::Tensor> twice;
  for (const at::Tensor& input : inputs) {
    if (input.dim() == 0 || input.size(0) != inputs.front().size(0)) {
      return false;
    }
    twice.push_back(at::cat({input, input}));
  }
  absl::StatusOr<std::vector<OutputLeaf>> doubled;
  try {
    doubled = Run(module, twice);
  } catch (const std::exception&) {
    return false;  // it takes no other number of rows
  }
  if (!doubled.ok() || doubled->size() != outputs.size()) {
    return false;
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (outputs[o].value.dim() == 0) {
      continue;  // one number a chunk
    }
    if ((*doubled)[o].value.dim() == 0 || outputs[o].value.size(0) != inputs.front().size(0) ||
        (*doubled)[o].value.size(0) != 2 * outputs[o].value.size(0)) {
      return false;
    }
  }
  return std::any_of(outputs.begin(), outputs.end(),
                     [](const OutputLeaf& output) { return output.value.dim() > 0; });
}

absl::StatusOr<TensorSpec> SpecOf(std::string name, const at::Tensor& tensor, bool batched) {
  TensorSpec spec;
  spec.name = std::move(name);
  if (!FromScalarType(tensor.scalar_type(), &spec.type)) {
    return absl::FailedPreconditionError(absl::StrCat("'", spec.name, "' is a ",
                                                      c10::toString(tensor.scalar_type()),
                                                      ", a type that cannot be sent"));
  }
  spec.dims.assign(tensor.sizes().begin() + (batched && tensor.dim() > 0 ? 1 : 0),
                   tensor.sizes().end());
  return spec;
}

}  // namespace

absl::StatusOr<ModelConfig> DeriveConfig(Module& module, const std::string& name) {
  const c10::AutoGradMode no_grad(false);
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> arguments,
                         RequiredArguments(module.get_method("forward").function().getSchema()));
  if (arguments.empty()) {
    return absl::FailedPreconditionError("forward takes no argument: there is nothing to send it");
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<at::Tensor> example, RecordedExample(module, arguments));
  BRAID_ASSIGN_OR_RETURN(const std::vector<OutputLeaf> outputs, Run(module, example));
  if (outputs.empty()) {
    return absl::FailedPreconditionError("the model returns no tensor");
  }
  ModelConfig config;
  config.name = name;
  const bool batched = IsBatched(module, example, outputs);
  config.max_batch_size = batched ? kDefaultMaxBatchSize : 0;
  for (size_t i = 0; i < example.size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, SpecOf(arguments[i], example[i], batched));
    config.inputs.push_back(std::move(spec));
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    const std::string output =
        outputs[o].path.empty() ? absl::StrCat("output__", o) : outputs[o].path;
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, SpecOf(output, outputs[o].value, batched));
    config.outputs.push_back(std::move(spec));
  }
  return config;
}

}  // namespace braid
