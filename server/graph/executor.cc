#include "server/graph/executor.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "ATen/ScalarOps.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/stack.h"
#include "ATen/ops/stack.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "server/base/text.h"

namespace braid {
namespace {

using c10::IValue;
using torch::jit::Stack;

std::string Describe(const IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? absl::StrCat(c10::toString(tensor.scalar_type()), "[",
                                           absl::StrJoin(tensor.sizes(), ", "), "]")
                            : "None";
  }
  if (value.isList()) {
    std::vector<std::string> items;
    for (const IValue& item : value.toListRef()) {
      items.push_back(Describe(item));
    }
    return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
  }
  return value.isInt()      ? absl::StrCat(value.toInt())
         : value.isDouble() ? absl::StrCat(value.toDouble())
         : value.isBool()   ? std::string(value.toBool() ? "True" : "False")
         : value.isNone()   ? std::string("None")
                            : std::string("...");
}

// Describes a call: "node 'linear', aten::linear(Float[2, 3], Float[4, 5], None), model.py, line
// 12, in forward".
std::string Context(const Instruction& instruction, c10::ArrayRef<IValue> arguments) {
  std::vector<std::string> described;
  for (const IValue& argument : arguments) {
    described.push_back(Describe(argument));
  }
  const std::string node =
      instruction.name.empty() ? "" : absl::StrCat("node '", Excerpt(instruction.name), "', ");
  const std::string line = instruction.line.empty() ? "" : absl::StrCat(", ", instruction.line);
  return absl::StrCat(node, instruction.target, "(", Excerpt(absl::StrJoin(described, ", "), 512),
                      ")", line);
}

// Applies the settings of a model's torch.autocast to the calling thread within its scope.
class AutocastRegion {
 public:
  explicit AutocastRegion(const Region& region)
      : device_(region.autocast_device),
        was_enabled_(at::autocast::is_autocast_enabled(device_)),
        had_type_(at::autocast::get_autocast_dtype(device_)),
        had_cache_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(device_, region.autocast_enabled);
    at::autocast::set_autocast_dtype(device_, region.autocast_type.value_or(had_type_));
    // All threads share one cache and would clear it while others use it.
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastRegion() {
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, had_type_);
    at::autocast::set_autocast_cache_enabled(had_cache_);
  }
  AutocastRegion(const AutocastRegion&) = delete;
  AutocastRegion& operator=(const AutocastRegion&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const at::ScalarType had_type_;
  const bool had_cache_;
};

// Returns the value of a predicate: a boolean, or a tensor with one element.
bool IsTrue(const IValue& value) {
  return value.isTensor() ? value.toTensor().item().toBool() : value.toScalar().toBool();
}

// Resolves a pending conjugation or negation.
IValue Resolved(IValue value) {
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.is_conj() || tensor.is_neg()) {
      return tensor.resolve_conj().resolve_neg();
    }
  }
  return value;
}

IValue ToTensor(const IValue& number) {
  at::Tensor tensor = at::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace

// Registers of one run of `code`.
class Executor::Frame {
 public:
  Frame(const Code& code, c10::Device device)
      : code_(code), device_(device), registers_(code.registers) {}

  void SetInput(size_t input, IValue value) {
    if (const Slot slot = code_.inputs[input]; slot != kNowhere) {
      registers_[slot] = std::move(value);
    }
  }

  std::vector<IValue> Run(const OnOutput& on_output) {
    try {
      return RunAll(on_output);
    } catch (...) {
      stack_.clear();
      registers_.assign(registers_.size(), IValue());
      throw;
    }
  }

 private:
  std::vector<IValue> RunAll(const OnOutput& on_output) {
    for (const Instruction& instruction : code_.instructions) {
      Step(instruction);
      if (on_output) {
        for (const size_t output : instruction.final_outputs) {
          on_output(output, registers_[code_.outputs[output].slot]);
        }
      }
    }
    std::vector<IValue> outputs;
    outputs.reserve(code_.outputs.size());
    for (const Operand& output : code_.outputs) {
      outputs.push_back(Take(output));
    }
    for (const size_t output : code_.given_outputs) {
      if (on_output) {
        on_output(output, outputs[output]);
      }
    }
    return outputs;
  }

  void Step(const Instruction& instruction) {
    for (const Operand& operand : instruction.operands) {
      stack_.push_back(Take(operand));
    }
    try {
      if (instruction.op) {
        instruction.op->callBoxed(&stack_);
      } else if (instruction.arithmetic != nullptr) {
        IValue result = instruction.arithmetic->apply(stack_.data());
        stack_.clear();
        stack_.push_back(std::move(result));
      } else {
        RunRegion(*instruction.region);
      }
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      throw c10::Error(c10::SourceLocation{__func__, __FILE__, __LINE__},
                       absl::StrCat(FirstLine(error.what_without_backtrace()), " (",
                                    Context(instruction, stack_), ")"));
    }
    Store(instruction.results);
  }

  IValue Read(const Operand& operand) {
    return operand.last_use ? std::move(registers_[operand.slot]) : registers_[operand.slot];
  }

  IValue Take(const Operand& operand) {
    switch (operand.kind) {
      case Operand::Kind::kRegister:
        return Read(operand);
      case Operand::Kind::kConstant:
        return operand.constant;
      case Operand::Kind::kRegisterAsFloat:
        return Read(operand).toScalar().toDouble();
      case Operand::Kind::kRegisterAsInt:
        return Read(operand).toScalar().toLong();
      case Operand::Kind::kRegisterAsTensor:
        return ToTensor(Read(operand));
      case Operand::Kind::kDevice:
        return device_;
      case Operand::Kind::kList:
        break;
    }
    c10::impl::GenericList list(operand.element);
    list.reserve(operand.items.size());
    for (const Operand& item : operand.items) {
      list.push_back(Take(item));
    }
    return list;
  }

  // Moves an instruction's results from the stack to their registers.
  void Store(const std::vector<Result>& results) {
    TORCH_INTERNAL_ASSERT(stack_.size() == results.size());
    for (size_t r = 0; r < results.size(); ++r) {
      const Result& result = results[r];
      if (result.is_list) {
        const c10::ArrayRef<IValue> items = stack_[r].toListRef();
        TORCH_CHECK(items.size() == result.items.size(), "an operator returned ", items.size(),
                    " tensors where the graph has ", result.items.size());
        for (size_t i = 0; i < items.size(); ++i) {
          Put(result.items[i], items[i]);
        }
      } else {
        Put(result.slot, std::move(stack_[r]));
      }
    }
    stack_.clear();
  }

  void Put(Slot slot, IValue value) {
    if (slot != kNowhere) {
      registers_[slot] = std::move(value);
    }
  }

  // Replaces the operands on the stack by the results of the region's bodies.
  void RunRegion(const Region& region) {
    Stack operands = std::exchange(stack_, Stack());
    switch (region.kind) {
      case Region::Kind::kCond: {
        const Code& body = region.bodies[IsTrue(operands.front()) ? 0 : 1];
        operands.erase(operands.begin());
        stack_ = RunBody(body, std::move(operands));
        break;
      }
      case Region::Kind::kAutocast: {
        const AutocastRegion autocast(region);
        stack_ = RunBody(region.bodies.front(), std::move(operands));
        break;
      }
      case Region::Kind::kWhile:
        stack_ = RunWhile(region, std::move(operands));
        break;
      case Region::Kind::kMap:
        stack_ = RunMap(region, operands);
        break;
    }
  }

  Stack RunBody(const Code& body, Stack operands) const {
    Frame frame(body, device_);
    for (size_t i = 0; i < operands.size(); ++i) {
      frame.SetInput(i, std::move(operands[i]));
    }
    operands.clear();
    return frame.Run({});
  }

  Stack RunWhile(const Region& region, Stack values) const {
    while (IsTrue(RunBody(region.bodies[0], values).front())) {
      Stack next = RunBody(region.bodies[1], values);
      std::move(next.begin(), next.end(), values.begin());
    }
    values.resize(region.carried);
    return values;
  }

  Stack RunMap(const Region& region, const Stack& operands) const {
    std::vector<std::vector<at::Tensor>> slices;  // by output
    const int64_t count = operands.front().toTensor().size(0);
    TORCH_CHECK(count > 0, "map over no rows");
    for (int64_t row = 0; row < count; ++row) {
      Stack values = operands;
      for (size_t v = 0; v < region.carried; ++v) {
        values[v] = operands[v].toTensor().select(0, row);
      }
      const Stack results = RunBody(region.bodies.front(), std::move(values));
      slices.resize(results.size());
      for (size_t r = 0; r < results.size(); ++r) {
        slices[r].push_back(results[r].toTensor());
      }
    }
    Stack stacked;
    for (const std::vector<at::Tensor>& each : slices) {
      stacked.emplace_back(at::stack(each));
    }
    return stacked;
  }

  const Code& code_;
  const c10::Device device_;
  std::vector<IValue> registers_;
  Stack stack_;  // empty between instructions
};

Executor::Executor(std::shared_ptr<const Program> program, std::vector<at::Tensor> bound,
                   c10::Device device)
    : program_(std::move(program)),
      bound_(std::move(bound)),
      device_(device),
      frame_(std::make_unique<Frame>(program_->code(), device)) {}

Executor::~Executor() = default;

std::vector<IValue> Executor::Run(std::vector<IValue> inputs, const OnOutput& on_output) {
  // Backward passes are separate graphs, so autograd is disabled.
  const c10::AutoGradMode no_grad(false);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  size_t given = 0;
  for (size_t i = 0; i < bound_.size(); ++i) {
    const Program::Input& input = program_->inputs()[i];
    if (input.kind == Program::Input::Kind::kUser) {
      TORCH_CHECK(given < inputs.size(), "expected more inputs than ", inputs.size());
      IValue& value = inputs[given++];
      frame_->SetInput(
          i, input.number && value.isTensor() ? IValue(value.toTensor().item()) : std::move(value));
    } else if (input.kind != Program::Input::Kind::kLiteral) {
      frame_->SetInput(i, bound_[i]);
    }
  }
  TORCH_CHECK(given == inputs.size(), "expected ", given, " inputs, got ", inputs.size());
  inputs.clear();
  std::vector<IValue> outputs = frame_->Run(on_output);
  for (IValue& output : outputs) {
    output = Resolved(std::move(output));
  }
  return outputs;
}

std::vector<at::Tensor> Executor::RunTensors(std::vector<at::Tensor> inputs) {
  std::vector<IValue> values(std::make_move_iterator(inputs.begin()),
                             std::make_move_iterator(inputs.end()));
  inputs.clear();
  std::vector<at::Tensor> outputs;
  for (IValue& output : Run(std::move(values))) {
    outputs.push_back(output.isNone() ? at::Tensor() : std::move(output).toTensor());
  }
  return outputs;
}

}  // namespace braid
