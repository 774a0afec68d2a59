#include "server/models/torchscript/derive_config.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/ivalue.h"
#include "ATen/core/jit_type.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/scalar_tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/models/torchscript/argument_plan.h"
#include "server/models/torchscript/flatten_outputs.h"
#include "server/parallel/host_copy.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {
namespace {

using torch::jit::Module;

// Method that torch.utils.bundled_inputs adds to a module.
constexpr char kExampleMethod[] = "get_all_bundled_inputs";

bool IsScalar(const c10::IValue& value) {
  return value.isInt() || value.isBool() || value.isDouble();
}

// Tensor of an example, with its name for PlanArguments().
struct ExampleLeaf {
  std::string name;
  at::Tensor value;
};

// Returns the tensors of `value`, which has `type` and is at `path` in the arguments.
absl::StatusOr<std::vector<ExampleLeaf>> ExampleLeaves(const c10::TypePtr& type,
                                                       const c10::IValue& value,
                                                       const std::string& path) {
  if (value.isNone()) {
    return std::vector<ExampleLeaf>();
  }
  if (value.isTensor()) {
    return std::vector<ExampleLeaf>{{path, value.toTensor()}};
  }
  std::vector<std::pair<std::string, c10::IValue>> parts;
  const auto optional = type->cast<c10::OptionalType>();
  const c10::TypePtr held = optional ? optional->getElementType() : type;
  if (const auto tuple = held->cast<c10::TupleType>(); tuple && value.isTuple()) {
    for (size_t k = 0; k < value.toTupleRef().elements().size(); ++k) {
      parts.emplace_back(PartName(*tuple, k), value.toTupleRef().elements()[k]);
    }
  } else if (value.isList()) {
    for (const c10::IValue& part : value.toListRef()) {
      parts.emplace_back(absl::StrCat(parts.size()), part);
    }
  } else if (value.isGenericDict() && held->kind() == c10::TypeKind::DictType &&
             held->expectRef<c10::DictType>().getKeyType()->kind() == c10::TypeKind::StringType) {
    for (const auto& entry : value.toGenericDict()) {
      parts.emplace_back(entry.key().toStringRef(), entry.value());
    }
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat("recorded example: '", path, "' is a ", value.tagKind(),
                     " (expected tensors, or tuples, lists or dicts of tensors, or an int, bool or "
                     "float argument)"));
  }
  std::vector<ExampleLeaf> leaves;
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto tuple = held->cast<c10::TupleType>();
    const c10::TypePtr part_type = tuple ? tuple->elements()[k] : held->containedTypes().back();
    BRAID_ASSIGN_OR_RETURN(
        std::vector<ExampleLeaf> more,
        ExampleLeaves(part_type, parts[k].second, absl::StrCat(path, ".", parts[k].first)));
    leaves.insert(leaves.end(), more.begin(), more.end());
  }
  return leaves;
}

// Returns the arguments of the first recorded call. Arguments with defaults may be omitted.
// FAILED_PRECONDITION if no call is recorded, or if it does not fit `schema`.
absl::StatusOr<std::vector<c10::IValue>> RecordedExample(Module& module,
                                                         const c10::FunctionSchema& schema) {
  const auto method = module.find_method(kExampleMethod);
  if (!method) {
    return absl::FailedPreconditionError(
        absl::StrCat("inputs and outputs of ", CallText(schema),
                     " are unknown (expected a config.pbtxt, or an example recorded with "
                     "torch.utils.bundled_inputs)"));
  }
  const c10::IValue examples = (*method)({});
  std::vector<c10::IValue> values;
  if (examples.isList() && !examples.toListRef().empty() && examples.toListRef()[0].isTuple()) {
    values = examples.toListRef()[0].toTupleRef().elements().vec();
  }
  const std::vector<c10::Argument>& arguments = schema.arguments();
  const bool enough = values.size() + 1 >= arguments.size() ||
                      arguments[values.size() + 1].default_value().has_value();
  if (!enough || values.size() + 1 > arguments.size()) {
    return absl::FailedPreconditionError(absl::StrCat("recorded example: ", values.size(),
                                                      " arguments (expected those of ",
                                                      CallText(schema), ")"));
  }
  return values;
}

// Returns the tensors of `example`, which may also have None, int, bool and float arguments.
// FAILED_PRECONDITION if it has no tensor, or other values.
absl::StatusOr<std::vector<ExampleLeaf>> TensorsOf(const std::vector<c10::IValue>& example,
                                                   const c10::FunctionSchema& schema) {
  std::vector<ExampleLeaf> leaves;
  for (size_t a = 0; a < example.size(); ++a) {
    const c10::Argument& argument = schema.arguments()[a + 1];
    if (IsScalar(example[a])) {
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(std::vector<ExampleLeaf> more,
                           ExampleLeaves(argument.type(), example[a], argument.name()));
    leaves.insert(leaves.end(), more.begin(), more.end());
  }
  if (leaves.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(CallText(schema), " takes no tensor (expected at least one)"));
  }
  return leaves;
}

// Calls forward() with tensors in place of those of the example.
class ExampleCall {
 public:
  ExampleCall(Module& module, std::vector<ArgumentPlan> plans, std::vector<at::Tensor> scalars)
      : module_(module), plans_(std::move(plans)), scalars_(std::move(scalars)) {}

  // Returns the tensors of the result, without None.
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

// Runs the model on inputs with twice the rows. Returns nullopt if dim 0 differs between inputs, or
// if the model fails or returns a different number of tensors.
std::optional<std::vector<OutputLeaf>> RunDoubled(const ExampleCall& call,
                                                  const std::vector<at::Tensor>& inputs,
                                                  size_t outputs) {
  std::vector<at::Tensor> twice;
  for (const at::Tensor& input : inputs) {
    if (input.dim() == 0 || input.size(0) != inputs.front().size(0)) {
      return std::nullopt;
    }
    twice.push_back(at::cat({input, input}));
  }
  absl::StatusOr<std::vector<OutputLeaf>> doubled;
  try {
    doubled = call.Run(twice);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  if (!doubled.ok() || doubled->size() != outputs) {
    return std::nullopt;
  }
  return *std::move(doubled);
}

// True if `doubled` has the shape of `once` with twice the rows. A 0-dim output is one number per
// chunk and has no rows.
bool HasTwiceTheRows(const at::Tensor& once, const at::Tensor& doubled, int64_t rows) {
  if (once.dim() == 0 || doubled.dim() == 0) {
    return once.dim() == doubled.dim();
  }
  return once.size(0) == rows && doubled.size(0) == 2 * rows &&
         once.sizes().slice(1) == doubled.sizes().slice(1);
}

bool IsBatched(const std::vector<OutputLeaf>& outputs, const std::vector<OutputLeaf>& doubled,
               int64_t rows) {
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!HasTwiceTheRows(outputs[o].value, doubled[o].value, rows)) {
      return false;
    }
  }
  return std::any_of(outputs.begin(), outputs.end(),
                     [](const OutputLeaf& output) { return output.value.dim() > 0; });
}

// Sets the dims of `spec` that differ between `once` and `doubled` to -1.
void OpenSizes(const at::Tensor& once, const at::Tensor& doubled, TensorSpec* spec) {
  for (size_t d = 0; once.dim() == doubled.dim() && d < spec->dims.size(); ++d) {
    if (once.size(static_cast<int64_t>(d)) != doubled.size(static_cast<int64_t>(d))) {
      spec->dims[d] = -1;
    }
  }
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
    return absl::FailedPreconditionError(absl::StrCat(
        "'", spec.name, "' has the unsupported datatype ", c10::toString(tensor.scalar_type())));
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
    return absl::FailedPreconditionError("the model returned no tensor");
  }
  for (const OutputLeaf& output : outputs) {
    BRAID_RETURN_IF_ERROR(CheckDense(output.path, output.value));
  }
  const auto doubled = RunDoubled(call, tensors, outputs.size());
  const bool batched = doubled && IsBatched(outputs, *doubled, tensors.front().size(0));
  config.max_batch_size = batched ? kDefaultMaxBatchSize : 0;
  for (size_t i = 0; doubled && i < tensors.size(); ++i) {
    std::vector<int64_t>& dims = config.inputs[i].dims;
    if (batched) {
      dims.erase(dims.begin());
    } else {
      dims.front() = -1;
    }
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    const std::string output =
        outputs[o].path.empty() ? absl::StrCat("output__", o) : outputs[o].path;
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, SpecOf(output, outputs[o].value, batched));
    if (doubled && !batched) {
      OpenSizes(outputs[o].value, (*doubled)[o].value, &spec);
    }
    config.outputs.push_back(std::move(spec));
  }
  return config;
}

}  // namespace braid
