#include "server/models/derive_config.h"

#include <algorithm>
#include <exception>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/scalar_tensor.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/models/recorded_example.h"
#include "server/models/torchscript_inputs.h"
#include "server/models/torchscript_io.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

using torch::jit::Module;

// forward() with the tensors of an example in the place of `tensors`.
class ExampleCall {
 public:
  ExampleCall(Module& module, std::vector<ArgumentPlan> plans, std::vector<at::Tensor> scalars)
      : module_(module), plans_(std::move(plans)), scalars_(std::move(scalars)) {}

  // The tensors that it returns: what is None is no output.
  absl::StatusOr<std::vector<OutputLeaf>> Run(std::vector<at::Tensor> tensors) const {
    tensors.insert(tensors.end(), scalars_.begin(), scalars_.end());
    std::vector<c10::IValue> arguments;
    for (const ArgumentPlan& plan : plans_) {
      arguments.push_back(MakeArgument(plan, tensors));
    }
    BRAID_ASSIGN_OR_RETURN(std::vector<OutputLeaf> leaves,
                           Flatten(module_.forward(std::move(arguments))));
    std::erase_if(leaves, [](const OutputLeaf& leaf) { return !leaf.value.defined(); });
    return leaves;
  }

 private:
  Module& module_;
  const std::vector<ArgumentPlan> plans_;
  const std::vector<at::Tensor> scalars_;
};

// Whether twice the rows give twice the rows.
bool IsBatched(const ExampleCall& call, const std::vector<at::Tensor>& inputs,
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
    doubled = call.Run(twice);
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

at::Tensor None() { return at::empty({0}, at::kDouble); }

at::Tensor Held(const ScalarValue& value) {
  return std::visit(
      [](auto held) {
        if constexpr (std::is_same_v<decltype(held), std::monostate>) {
          return None();
        } else {
          return at::scalar_tensor(held, at::kDouble);
        }
      },
      value);
}

at::Tensor Held(const c10::IValue& value) {
  return value.isNone() ? None() : at::scalar_tensor(value.toScalar(), at::kDouble);
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
  const c10::FunctionSchema& schema = module.get_method("forward").function().getSchema();
  BRAID_ASSIGN_OR_RETURN(const std::vector<c10::IValue> example, RecordedExample(module, schema));
  BRAID_ASSIGN_OR_RETURN(const std::vector<ExampleLeaf> leaves, TensorsOf(example, schema));
  ModelConfig config;
  config.name = name;
  std::vector<at::Tensor> tensors;
  for (const ExampleLeaf& leaf : leaves) {
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, SpecOf(leaf.name, leaf.value, /*batched=*/false));
    config.inputs.push_back(std::move(spec));
    tensors.push_back(leaf.value);
  }
  std::vector<at::Tensor> scalars;
  for (TensorSpec& spec : ScalarArguments(schema)) {
    const size_t place = schema.argumentIndexWithName(spec.name).value() - size_t{1};
    scalars.push_back(place < example.size() ? Held(example[place]) : Held(*spec.default_value));
    config.inputs.push_back(std::move(spec));
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<ArgumentPlan> plans, PlanArguments(config.inputs, schema));
  const ExampleCall call(module, std::move(plans), std::move(scalars));
  BRAID_ASSIGN_OR_RETURN(const std::vector<OutputLeaf> outputs, call.Run(tensors));
  if (outputs.empty()) {
    return absl::FailedPreconditionError("the model returns no tensor");
  }
  const bool batched = IsBatched(call, tensors, outputs);
  config.max_batch_size = batched ? kDefaultMaxBatchSize : 0;
  for (size_t i = 0; batched && i < tensors.size(); ++i) {
    config.inputs[i].dims.erase(config.inputs[i].dims.begin());
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
