#include "server/graph/compiler.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/graph/arguments.h"
#include "server/graph/liveness.h"
#include "server/graph/model_line.h"
#include "server/graph/schema_types.h"
#include "server/kernels/recurrent_operators.h"

namespace braid {
namespace {

// Maximum nesting of graphs, such as branches. No real model is deeper.
constexpr int kMaxDepth = 16;

using Fields = std::vector<JsonField>;

absl::StatusOr<Fields> ItemsOf(const JsonField& object, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const JsonField list, object.Get(name));
  return list.Items();
}

absl::StatusOr<std::string> TextOf(const JsonField& object, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get(name));
  return field.String();
}

// Parses "torch.ops.aten.linear.default" to "aten::linear" and its overload.
absl::StatusOr<c10::OperatorName> ReadOperatorName(const JsonField& field,
                                                   absl::string_view target) {
  const size_t overload = target.rfind('.');
  const size_t name = overload == absl::string_view::npos || overload == 0
                          ? absl::string_view::npos
                          : target.rfind('.', overload - 1);
  if (!absl::ConsumePrefix(&target, "torch.ops.") || name == absl::string_view::npos) {
    return field.Error(absl::StrCat("unknown function '", Excerpt(target), "'"));
  }
  constexpr size_t kPrefix = 10;
  if (name < kPrefix) {
    return field.Error(absl::StrCat("unknown operator '", Excerpt(target), "'"));
  }
  const std::string space(target.substr(0, name - kPrefix));
  const std::string own(target.substr(name - kPrefix + 1, overload - name - 1));
  const std::string last(target.substr(overload - kPrefix + 1));
  return c10::OperatorName(absl::StrCat(space, "::", own), last == "default" ? "" : last);
}

absl::StatusOr<c10::OperatorHandle> FindOperator(const JsonField& field,
                                                 const std::string& target) {
  BRAID_ASSIGN_OR_RETURN(const c10::OperatorName name, ReadOperatorName(field, target));
  if (name.name == "aten::from_file") {
    return field.Error("operator aten::from_file is not allowed: it opens files of the server");
  }
  if (name.name == "aten::_print") {
    return field.Error("operator aten::_print is not allowed: it writes to the server's output");
  }
  const auto found = c10::Dispatcher::singleton().findSchema(name);
  if (!found) {
    return field.Error(absl::StrCat("unknown operator '", Excerpt(c10::toString(name)),
                                    "': this server's PyTorch does not have it, and no library "
                                    "of --operator_libraries defines it"));
  }
  return *found;
}

// Returns the type of values of an argument kind; kOther for constants.
ValueType TypeOf(absl::string_view kind) {
  return kind == "as_tensor"      ? ValueType::kTensor
         : kind == "as_sym_int"   ? ValueType::kInt
         : kind == "as_sym_float" ? ValueType::kFloat
         : kind == "as_sym_bool"  ? ValueType::kBool
                                  : ValueType::kOther;
}

using Types = std::vector<ValueType>;

absl::string_view NameOf(ValueType type) {
  switch (type) {
    case ValueType::kTensor:
      return "tensor";
    case ValueType::kInt:
      return "int";
    case ValueType::kFloat:
      return "float";
    case ValueType::kBool:
      return "bool";
    case ValueType::kOther:
      break;
  }
  return "neither tensor nor number";
}

Types TypesOf(const std::vector<Value>& values) {
  Types types;
  types.reserve(values.size());
  for (const Value& value : values) {
    types.push_back(value.type);
  }
  return types;
}

std::vector<Operand> OperandsOf(const std::vector<Value>& values) {
  std::vector<Operand> operands;
  operands.reserve(values.size());
  for (const Value& value : values) {
    operands.push_back(value.operand);
  }
  return operands;
}

// Returns the type of each output of a node.
absl::StatusOr<Types> OutputTypes(const JsonField& node) {
  BRAID_ASSIGN_OR_RETURN(const Fields outputs, ItemsOf(node, "outputs"));
  Types types;
  for (const JsonField& output : outputs) {
    BRAID_ASSIGN_OR_RETURN(const std::string kind, output.OnlyKey());
    BRAID_ASSIGN_OR_RETURN(const JsonField value, output.Get(kind.c_str()));
    if (kind == "as_tensors") {
      BRAID_ASSIGN_OR_RETURN(const Fields items, value.Items());
      types.insert(types.end(), items.size(), ValueType::kTensor);
    } else if (kind == "as_none" || TypeOf(kind) != ValueType::kOther) {
      types.push_back(TypeOf(kind));
    } else {
      return output.Error(absl::StrCat("'", Excerpt(kind), "' cannot be returned by a graph"));
    }
  }
  return types;
}

// Checks the types of a graph's inputs or outputs. expected: kOther matches any type.
absl::Status CheckTypes(const JsonField& graph, const char* side, const Types& types,
                        const Types& expected) {
  if (types.size() != expected.size()) {
    return graph.Error(absl::StrCat(types.size(), " ", side, " (expected ", expected.size(), ")"));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (expected[i] != ValueType::kOther && types[i] != expected[i]) {
      return graph.Error(absl::StrCat(side, "[", i, "]: ", NameOf(types[i]), " (expected ",
                                      NameOf(expected[i]), ")"));
    }
  }
  return absl::OkStatus();
}

// Compiles one graph into `code`: the whole graph, or a node's graph that is inlined.
class GraphCompiler {
 public:
  GraphCompiler(Code* code, int depth) : code_(code), depth_(depth) {}

  // Compiles a graph whose inputs get new registers.
  absl::Status DefineInputs(const JsonField& graph, const ConstantNames& constants);
  // Compiles an inlined graph, whose inputs are values of the enclosing graph.
  absl::Status BindInputs(const JsonField& graph, const std::vector<Value>& given);
  absl::Status AddNodes(const JsonField& graph);
  absl::StatusOr<std::vector<Value>> ReadOutputs(const JsonField& graph) const;

 private:
  absl::StatusOr<Slot> Define(const JsonField& field, const std::string& name, ValueType type);
  absl::Status AddNode(const JsonField& node);
  absl::StatusOr<Result> ReadResult(const JsonField& field);
  absl::Status ReadResults(const JsonField& node, Instruction* instruction);

  absl::Status AddArithmetic(const JsonField& node, Instruction instruction);
  // Computes a result that depends on no input.
  absl::Status FoldArithmetic(const JsonField& node, const Instruction& instruction,
                              const Types& declared);
  absl::Status AddOperator(const JsonField& node, Instruction instruction);
  absl::Status AddHigherOrder(const JsonField& node, const std::string& name,
                              Instruction instruction);
  // Inlines `graph` in place of `node`.
  absl::Status Inline(const JsonField& node, const JsonField& graph,
                      const std::vector<Value>& given);
  // Compiles a graph that runs in a region. given: kOther matches any type.
  absl::StatusOr<Code> CompileBody(const JsonField& graph, const Types& taken,
                                   const Types& given) const;

  Code* const code_;
  const int depth_;
  Values values_;
  Types input_types_;
};

absl::StatusOr<Slot> GraphCompiler::Define(const JsonField& field, const std::string& name,
                                           ValueType type) {
  Value value;
  value.operand.kind = Operand::Kind::kRegister;
  value.operand.slot = code_->registers;
  value.type = type;
  BRAID_RETURN_IF_ERROR(values_.Define(field, name, std::move(value)));
  return code_->registers++;
}

absl::Status GraphCompiler::DefineInputs(const JsonField& graph, const ConstantNames& constants) {
  BRAID_ASSIGN_OR_RETURN(const Fields inputs, ItemsOf(graph, "inputs"));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const JsonField& input = inputs[i];
    BRAID_ASSIGN_OR_RETURN(const std::string kind, input.OnlyKey());
    BRAID_ASSIGN_OR_RETURN(const JsonField value, input.Get(kind.c_str()));
    const char* const key = kind == "as_tensor" ? "name" : "as_name";
    const ValueType type = TypeOf(kind);
    if (type != ValueType::kOther) {
      BRAID_ASSIGN_OR_RETURN(const std::string name, TextOf(value, key));
      input_types_.push_back(type);
      BRAID_ASSIGN_OR_RETURN(code_->inputs.emplace_back(), Define(value, name, type));
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(Value constant, ReadValue(input, values_));
    code_->inputs.push_back(kNowhere);
    input_types_.push_back(constant.type);
    if (i < constants.size() && !constants[i].empty()) {
      BRAID_RETURN_IF_ERROR(values_.Define(input, constants[i], std::move(constant)));
    }
  }
  return absl::OkStatus();
}

absl::Status GraphCompiler::BindInputs(const JsonField& graph, const std::vector<Value>& given) {
  BRAID_ASSIGN_OR_RETURN(const Fields inputs, ItemsOf(graph, "inputs"));
  Types expected;
  for (const JsonField& input : inputs) {
    BRAID_ASSIGN_OR_RETURN(const std::string kind, input.OnlyKey());
    expected.push_back(TypeOf(kind));
  }
  BRAID_RETURN_IF_ERROR(CheckTypes(graph, "inputs", TypesOf(given), expected));
  for (size_t i = 0; i < inputs.size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(const std::string kind, inputs[i].OnlyKey());
    BRAID_ASSIGN_OR_RETURN(const JsonField value, inputs[i].Get(kind.c_str()));
    if (expected[i] != ValueType::kOther) {
      BRAID_ASSIGN_OR_RETURN(const std::string name,
                             TextOf(value, kind == "as_tensor" ? "name" : "as_name"));
      BRAID_RETURN_IF_ERROR(values_.Define(value, name, given[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status GraphCompiler::AddNodes(const JsonField& graph) {
  BRAID_ASSIGN_OR_RETURN(const Fields nodes, ItemsOf(graph, "nodes"));
  for (const JsonField& node : nodes) {
    if (absl::Status added = AddNode(node); !added.ok()) {
      const std::string line = ModelLine(node);
      return line.empty()
                 ? added
                 : absl::Status(added.code(), absl::StrCat(added.message(), " [", line, "]"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Value>> GraphCompiler::ReadOutputs(const JsonField& graph) const {
  BRAID_ASSIGN_OR_RETURN(const Fields fields, ItemsOf(graph, "outputs"));
  std::vector<Value> outputs;
  for (const JsonField& field : fields) {
    BRAID_ASSIGN_OR_RETURN(outputs.emplace_back(), ReadValue(field, values_));
  }
  return outputs;
}

absl::Status GraphCompiler::AddNode(const JsonField& node) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, node.Get("target"));
  BRAID_ASSIGN_OR_RETURN(const std::string target, field.String());
  Instruction instruction;
  instruction.name = node.Has("name") ? TextOf(node, "name").value_or("") : "";
  instruction.target = target;
  instruction.line = ModelLine(node);
  absl::string_view higher_order = target;
  if (absl::ConsumePrefix(&higher_order, "torch.ops.higher_order.")) {
    return AddHigherOrder(node, std::string(higher_order), std::move(instruction));
  }
  instruction.arithmetic = FindArithmetic(target);
  if (instruction.arithmetic != nullptr) {
    return AddArithmetic(node, std::move(instruction));
  }
  BRAID_ASSIGN_OR_RETURN(instruction.op, FindOperator(field, target));
  instruction.target = c10::toString(instruction.op->operator_name());
  return AddOperator(node, std::move(instruction));
}

absl::StatusOr<Result> GraphCompiler::ReadResult(const JsonField& field) {
  BRAID_ASSIGN_OR_RETURN(const std::string kind, field.OnlyKey());
  BRAID_ASSIGN_OR_RETURN(const JsonField value, field.Get(kind.c_str()));
  Result result;
  if (kind == "as_none") {
    return result;
  }
  if (kind == "as_tensor") {
    BRAID_ASSIGN_OR_RETURN(const std::string name, TextOf(value, "name"));
    BRAID_ASSIGN_OR_RETURN(result.slot, Define(value, name, ValueType::kTensor));
    return result;
  }
  if (kind == "as_tensors") {
    result.is_list = true;
    BRAID_ASSIGN_OR_RETURN(const Fields items, value.Items());
    for (const JsonField& item : items) {
      BRAID_ASSIGN_OR_RETURN(const std::string name, TextOf(item, "name"));
      BRAID_ASSIGN_OR_RETURN(result.items.emplace_back(), Define(item, name, ValueType::kTensor));
    }
    return result;
  }
  const ValueType type = TypeOf(kind);
  if (type == ValueType::kOther) {
    return field.Error(absl::StrCat("'", Excerpt(kind), "' cannot be returned by an operator"));
  }
  BRAID_ASSIGN_OR_RETURN(const std::string name, TextOf(value, "as_name"));
  BRAID_ASSIGN_OR_RETURN(result.slot, Define(value, name, type));
  return result;
}

absl::Status GraphCompiler::ReadResults(const JsonField& node, Instruction* instruction) {
  BRAID_ASSIGN_OR_RETURN(const Fields outputs, ItemsOf(node, "outputs"));
  for (const JsonField& output : outputs) {
    BRAID_ASSIGN_OR_RETURN(instruction->results.emplace_back(), ReadResult(output));
  }
  return absl::OkStatus();
}

absl::Status GraphCompiler::AddArithmetic(const JsonField& node, Instruction instruction) {
  BRAID_ASSIGN_OR_RETURN(const Fields inputs, ItemsOf(node, "inputs"));
  if (inputs.size() != instruction.arithmetic->arity) {
    return node.Error(absl::StrCat(instruction.target, " has ", inputs.size(),
                                   " arguments (expected ", instruction.arithmetic->arity, ")"));
  }
  for (const JsonField& input : inputs) {
    BRAID_ASSIGN_OR_RETURN(const JsonField argument, input.Get("arg"));
    BRAID_ASSIGN_OR_RETURN(const Value value, ReadValue(argument, values_));
    if (value.type == ValueType::kTensor || value.type == ValueType::kOther) {
      return argument.Error(
          absl::StrCat("wrong type of argument of ", instruction.target, " (expected a number)"));
    }
    instruction.operands.push_back(value.operand);
  }
  BRAID_ASSIGN_OR_RETURN(const Types results, OutputTypes(node));
  if (results.size() != 1 || results[0] == ValueType::kTensor || results[0] == ValueType::kOther) {
    return node.Error(
        absl::StrCat("wrong result type of ", instruction.target, " (expected a number)"));
  }
  if (std::all_of(instruction.operands.begin(), instruction.operands.end(),
                  [](const Operand& each) { return each.kind == Operand::Kind::kConstant; })) {
    return FoldArithmetic(node, instruction, results);
  }
  BRAID_RETURN_IF_ERROR(ReadResults(node, &instruction));
  code_->instructions.push_back(std::move(instruction));
  return absl::OkStatus();
}

absl::Status GraphCompiler::FoldArithmetic(const JsonField& node, const Instruction& instruction,
                                           const Types& declared) {
  std::vector<c10::IValue> arguments;
  for (const Operand& operand : instruction.operands) {
    arguments.push_back(operand.constant);
  }
  Value value;
  try {
    value.operand.constant = instruction.arithmetic->apply(arguments.data());
  } catch (const c10::Error& error) {
    return node.Error(
        absl::StrCat(instruction.target, ": ", FirstLine(error.what_without_backtrace())));
  }
  const c10::IValue& number = value.operand.constant;
  value.type = number.isInt()    ? ValueType::kInt
               : number.isBool() ? ValueType::kBool
                                 : ValueType::kFloat;
  BRAID_RETURN_IF_ERROR(CheckTypes(node, "outputs", {value.type}, declared));
  BRAID_ASSIGN_OR_RETURN(const Fields outputs, ItemsOf(node, "outputs"));
  BRAID_ASSIGN_OR_RETURN(const std::string kind, outputs.front().OnlyKey());
  BRAID_ASSIGN_OR_RETURN(const JsonField output, outputs.front().Get(kind.c_str()));
  BRAID_ASSIGN_OR_RETURN(const std::string name, TextOf(output, "as_name"));
  return values_.Define(output, name, std::move(value));
}

// True if `field` is a valid output of an operator that returns `type`.
bool Returns(const c10::TypePtr& type, const Result& result, const JsonField& field) {
  if (field.Has("as_none")) {
    return true;
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return field.Has("as_tensor");
    case c10::TypeKind::OptionalType:
      return Returns(type->castRaw<c10::OptionalType>()->getElementType(), result, field);
    case c10::TypeKind::ListType:
      return result.is_list &&
             type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return field.Has("as_sym_float");
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return field.Has("as_sym_bool");
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return field.Has("as_sym_int");
    default:
      return !field.Has("as_tensor") && !result.is_list;
  }
}

absl::Status GraphCompiler::AddOperator(const JsonField& node, Instruction instruction) {
  const c10::FunctionSchema& schema = instruction.op->schema();
  const std::vector<c10::Argument>& wanted = schema.arguments();
  BRAID_ASSIGN_OR_RETURN(const Fields inputs, ItemsOf(node, "inputs"));
  std::vector<std::optional<Operand>> given(wanted.size());
  for (const JsonField& input : inputs) {
    BRAID_ASSIGN_OR_RETURN(const std::string name, TextOf(input, "name"));
    BRAID_ASSIGN_OR_RETURN(const JsonField argument, input.Get("arg"));
    const auto found = schema.argumentIndexWithName(name);
    if (!found) {
      return input.Error(
          absl::StrCat(instruction.target, " has no argument '", Excerpt(name), "'"));
    }
    const auto index = static_cast<size_t>(*found);
    std::optional<Operand>& place = given[index];
    if (place) {
      return input.Error(absl::StrCat("duplicate argument '", name, "' of ", instruction.target));
    }
    absl::StatusOr<Operand> operand = ReadArgument(argument, wanted[index], values_);
    if (!operand.ok()) {
      return absl::Status(operand.status().code(),
                          absl::StrCat(operand.status().message(), ", argument '", name, "' of ",
                                       instruction.target));
    }
    place = *std::move(operand);
  }
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (!given[a]) {
      if (!wanted[a].default_value()) {
        return node.Error(
            absl::StrCat(instruction.target, ": missing argument '", wanted[a].name(), "'"));
      }
      given[a].emplace().constant = *wanted[a].default_value();
    }
    instruction.operands.push_back(*std::move(given[a]));
  }
  BRAID_RETURN_IF_ERROR(ReadResults(node, &instruction));
  BRAID_ASSIGN_OR_RETURN(const Fields outputs, ItemsOf(node, "outputs"));
  if (outputs.size() != schema.returns().size()) {
    return node.Error(absl::StrCat(instruction.target, " has ", outputs.size(),
                                   " outputs (expected ", schema.returns().size(), ")"));
  }
  for (size_t r = 0; r < outputs.size(); ++r) {
    if (!Returns(schema.returns()[r].type(), instruction.results[r], outputs[r])) {
      return outputs[r].Error(absl::StrCat("wrong result type of ", instruction.target,
                                           " (expected ", schema.returns()[r].type()->str(), ")"));
    }
  }
  instruction.writes = schema.is_mutable();
  // Random operators advance the generator, so they cannot be removed.
  instruction.has_effects = instruction.writes || outputs.empty() ||
                            instruction.op->hasTag(at::Tag::nondeterministic_seeded);
  code_->instructions.push_back(std::move(instruction));
  return absl::OkStatus();
}

absl::Status GraphCompiler::Inline(const JsonField& node, const JsonField& graph,
                                   const std::vector<Value>& given) {
  if (depth_ >= kMaxDepth) {
    return graph.Error("graphs are nested too deep");
  }
  GraphCompiler inner(code_, depth_ + 1);
  BRAID_RETURN_IF_ERROR(inner.BindInputs(graph, given));
  BRAID_RETURN_IF_ERROR(inner.AddNodes(graph));
  BRAID_ASSIGN_OR_RETURN(const std::vector<Value> results, inner.ReadOutputs(graph));
  BRAID_ASSIGN_OR_RETURN(const Types expected, OutputTypes(node));
  BRAID_RETURN_IF_ERROR(CheckTypes(graph, "outputs", TypesOf(results), expected));
  BRAID_ASSIGN_OR_RETURN(const Fields outputs, ItemsOf(node, "outputs"));
  auto result = results.begin();
  for (const JsonField& output : outputs) {
    BRAID_ASSIGN_OR_RETURN(const std::string kind, output.OnlyKey());
    BRAID_ASSIGN_OR_RETURN(const JsonField value, output.Get(kind.c_str()));
    Fields names = {value};
    if (kind == "as_tensors") {
      BRAID_ASSIGN_OR_RETURN(names, value.Items());
    }
    for (const JsonField& field : names) {
      const Value& returned = *result++;
      if (kind == "as_none") {
        continue;
      }
      const bool is_tensor = kind == "as_tensor" || kind == "as_tensors";
      BRAID_ASSIGN_OR_RETURN(const std::string name, TextOf(field, is_tensor ? "name" : "as_name"));
      BRAID_RETURN_IF_ERROR(values_.Define(field, name, returned));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Code> GraphCompiler::CompileBody(const JsonField& graph, const Types& taken,
                                                const Types& given) const {
  if (depth_ >= kMaxDepth) {
    return graph.Error("graphs are nested too deep");
  }
  Code body;
  GraphCompiler inner(&body, depth_ + 1);
  BRAID_RETURN_IF_ERROR(inner.DefineInputs(graph, {}));
  BRAID_RETURN_IF_ERROR(inner.AddNodes(graph));
  BRAID_RETURN_IF_ERROR(CheckTypes(graph, "inputs", taken, inner.input_types_));
  BRAID_ASSIGN_OR_RETURN(const std::vector<Value> outputs, inner.ReadOutputs(graph));
  BRAID_RETURN_IF_ERROR(CheckTypes(graph, "outputs", TypesOf(outputs), given));
  body.outputs = OperandsOf(outputs);
  MarkLastUses(&body);
  return body;
}

// Arguments of a higher-order operator: graphs and their operands.
struct HigherOrderArguments {
  std::vector<JsonField> graphs;
  std::vector<std::vector<Value>> groups;  // each argument that is not a graph
};

absl::StatusOr<HigherOrderArguments> ReadHigherOrder(const JsonField& node, const Values& values) {
  HigherOrderArguments arguments;
  BRAID_ASSIGN_OR_RETURN(const Fields inputs, ItemsOf(node, "inputs"));
  for (const JsonField& input : inputs) {
    BRAID_ASSIGN_OR_RETURN(const JsonField argument, input.Get("arg"));
    if (argument.Has("as_graph")) {
      BRAID_ASSIGN_OR_RETURN(const JsonField named, argument.Get("as_graph"));
      BRAID_ASSIGN_OR_RETURN(arguments.graphs.emplace_back(named), named.Get("graph"));
    } else {
      BRAID_ASSIGN_OR_RETURN(arguments.groups.emplace_back(), ReadValues(argument, values));
    }
  }
  return arguments;
}

// Concatenates `groups` from `first` on.
std::vector<Value> Flatten(const std::vector<std::vector<Value>>& groups, size_t first) {
  std::vector<Value> all;
  for (size_t g = first; g < groups.size(); ++g) {
    all.insert(all.end(), groups[g].begin(), groups[g].end());
  }
  return all;
}

const c10::IValue& ConstantOf(const std::vector<Value>& group) {
  static const auto* const kNone = new c10::IValue();
  return group.size() == 1 ? group.front().operand.constant : *kNone;
}

// Reads the arguments of torch.autocast: device, type, enabled and cache_enabled.
absl::Status ReadAutocast(const JsonField& node, const std::vector<std::vector<Value>>& groups,
                          Region* region) {
  if (groups.size() < 4 || !ConstantOf(groups[0]).isString() || !ConstantOf(groups[2]).isBool()) {
    return node.Error("wrong arguments of wrap_with_autocast");
  }
  const std::string& device = ConstantOf(groups[0]).toStringRef();
  if (device != "cpu" && device != "cuda") {
    return node.Error(
        absl::StrCat("autocast on unknown device '", Excerpt(device), "' (expected cpu or cuda)"));
  }
  region->autocast_device = device == "cpu" ? c10::kCPU : c10::kCUDA;
  if (ConstantOf(groups[1]).isInt()) {
    const int64_t type = ConstantOf(groups[1]).toInt();
    if (type < 0 || type >= static_cast<int64_t>(c10::ScalarType::NumOptions)) {
      return node.Error(absl::StrCat("autocast to unknown type code ", type));
    }
    region->autocast_type = static_cast<c10::ScalarType>(type);
  }
  region->autocast_enabled = ConstantOf(groups[2]).toBool();
  return absl::OkStatus();
}

// Checks a region's first operands, `carried`, and its results.
absl::Status CheckRegion(const JsonField& node, const Region& region, const Types& carried,
                         const Types& results) {
  switch (region.kind) {
    case Region::Kind::kCond:
      if (carried.size() != 1 || carried.front() == ValueType::kOther) {
        return node.Error("cond has no predicate (expected a tensor or a number)");
      }
      return absl::OkStatus();
    case Region::Kind::kWhile:
      return CheckTypes(node, "outputs", results, carried);
    case Region::Kind::kMap:
      if (carried.empty()) {
        return node.Error("map_impl has no operands (expected at least 1)");
      }
      BRAID_RETURN_IF_ERROR(
          CheckTypes(node, "operands", carried, Types(carried.size(), ValueType::kTensor)));
      return CheckTypes(node, "outputs", results, Types(results.size(), ValueType::kTensor));
    case Region::Kind::kAutocast:
      break;
  }
  return absl::OkStatus();
}

bool HasEffects(const std::vector<Code>& bodies) {
  return std::any_of(bodies.begin(), bodies.end(), [](const Code& body) {
    return std::any_of(body.instructions.begin(), body.instructions.end(),
                       [](const Instruction& each) { return each.has_effects; });
  });
}

absl::Status GraphCompiler::AddHigherOrder(const JsonField& node, const std::string& name,
                                           Instruction instruction) {
  static const auto* const kKnown = new std::map<std::string, size_t>({
      {"cond", 2},
      {"invoke_subgraph", 1},
      {"map_impl", 1},
      {"while_loop", 2},
      {"wrap_with_autocast", 1},
      {"wrap_with_set_grad_enabled", 1},
  });
  const auto known = kKnown->find(name);
  if (known == kKnown->end()) {
    return node.Error(absl::StrCat("operator ", Excerpt(instruction.target), " is not supported"));
  }
  BRAID_ASSIGN_OR_RETURN(const HigherOrderArguments arguments, ReadHigherOrder(node, values_));
  const auto& groups = arguments.groups;
  if (arguments.graphs.size() != known->second || groups.empty()) {
    return node.Error(absl::StrCat("wrong arguments of ", instruction.target));
  }
  // Gradients are never recorded here, so the setting has no effect. A subgraph's name is a cache
  // key.
  if (name == "wrap_with_set_grad_enabled" || name == "invoke_subgraph") {
    return Inline(node, arguments.graphs.front(), Flatten(groups, 1));
  }
  Region region;
  size_t settings = 0;  // number of groups that are not operands of a body
  if (name == "wrap_with_autocast") {
    region.kind = Region::Kind::kAutocast;
    BRAID_RETURN_IF_ERROR(ReadAutocast(node, groups, &region));
    settings = 4;
  } else {
    region.kind = name == "cond"         ? Region::Kind::kCond
                  : name == "while_loop" ? Region::Kind::kWhile
                                         : Region::Kind::kMap;
    region.carried = groups.front().size();
  }
  const std::vector<Value> operands = Flatten(groups, settings);
  instruction.operands = OperandsOf(operands);
  BRAID_RETURN_IF_ERROR(ReadResults(node, &instruction));
  BRAID_ASSIGN_OR_RETURN(const Types results, OutputTypes(node));
  Types taken = TypesOf(operands);
  BRAID_RETURN_IF_ERROR(CheckRegion(node, region, TypesOf(groups.front()), results));
  if (region.kind == Region::Kind::kCond) {
    taken.erase(taken.begin());  // the predicate
  }
  for (size_t g = 0; g < arguments.graphs.size(); ++g) {
    // The first graph of a loop returns its predicate.
    const bool decides = region.kind == Region::Kind::kWhile && g == 0;
    BRAID_ASSIGN_OR_RETURN(
        region.bodies.emplace_back(),
        CompileBody(arguments.graphs[g], taken, decides ? Types{ValueType::kOther} : results));
  }
  instruction.has_effects = HasEffects(region.bodies);
  for (const Code& body : region.bodies) {
    for (const Instruction& each : body.instructions) {
      instruction.writes = instruction.writes || each.writes;
    }
  }
  instruction.region = std::make_shared<const Region>(std::move(region));
  code_->instructions.push_back(std::move(instruction));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Code> Compile(const JsonField& graph, const ConstantNames& constants) {
  RegisterRecurrentOperators();
  Code code;
  GraphCompiler compiler(&code, /*depth=*/0);
  BRAID_RETURN_IF_ERROR(compiler.DefineInputs(graph, constants));
  BRAID_RETURN_IF_ERROR(compiler.AddNodes(graph));
  BRAID_ASSIGN_OR_RETURN(const std::vector<Value> outputs, compiler.ReadOutputs(graph));
  code.outputs = OperandsOf(outputs);
  MarkLastUses(&code);
  return code;
}

}  // namespace braid
