#include "server/models/torchscript/argument_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/models/model_config.h"
#include "server/models/name_binding.h"

namespace braid {
namespace {

using Kind = ArgumentPlan::Kind;

// Finds the inputs for the values of a call. Called in the order of forward()'s arguments.
class InputFinder {
 public:
  virtual ~InputFinder() = default;
  // Returns the input for the tensor or scalar at `path`.
  virtual std::optional<size_t> Find(const std::string& path) = 0;
  // Returns the keys of the elements of a list or dict at `path` that have inputs.
  virtual std::vector<std::string> Keys(const std::string& path, bool list, bool of_tensors) = 0;
  // True if the next optional value with tensors is given. Called once for each such value.
  virtual bool TakesOptional() = 0;
  // Number of inputs found so far.
  virtual size_t used() const = 0;
};

// Finds inputs by name. `inputs` must outlive it.
class InputsByName final : public InputFinder {
 public:
  explicit InputsByName(const std::vector<TensorSpec>& inputs) : inputs_(inputs) {}

  std::optional<size_t> Find(const std::string& path) override;
  std::vector<std::string> Keys(const std::string& path, bool list, bool of_tensors) override;
  bool TakesOptional() override { return true; }
  size_t used() const override { return found_.size(); }
  bool all_found() const { return found_.size() == inputs_.size(); }
  bool found(size_t input) const { return found_.count(input) > 0; }

 private:
  const std::vector<TensorSpec>& inputs_;
  std::set<size_t> found_;
};

// Numbers that determine how a call takes a sequence of tensors.
struct CallForm {
  size_t optionals = 0;  // optional values that are given, the first ones
  size_t elements = 0;   // elements of its list or dict
};

// Finds tensors by position, in `order`, and scalars by name. `inputs` must outlive it.
class InputsInOrder final : public InputFinder {
 public:
  InputsInOrder(const std::vector<TensorSpec>& inputs, std::vector<size_t> order, CallForm form)
      : inputs_(inputs), order_(std::move(order)), form_(form) {}

  std::optional<size_t> Find(const std::string& path) override;
  std::vector<std::string> Keys(const std::string& path, bool list, bool of_tensors) override;
  bool TakesOptional() override { return optionals_++ < form_.optionals; }
  size_t used() const override { return next_; }
  bool all_found() const { return next_ == order_.size(); }
  // True if the tensor's name, or key, matches the path that it was found for.
  bool name_matches(size_t input) const { return name_matches_.count(input) > 0; }
  bool all_names_match() const { return name_matches_.size() == order_.size(); }

 private:
  const std::vector<TensorSpec>& inputs_;
  const std::vector<size_t> order_;
  const CallForm form_;
  size_t next_ = 0;
  size_t optionals_ = 0;
  std::set<size_t> name_matches_;
};

std::optional<size_t> InputsByName::Find(const std::string& path) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].name == path) {
      found_.insert(i);
      return i;
    }
  }
  return std::nullopt;
}

std::vector<std::string> InputsByName::Keys(const std::string& path, bool list, bool of_tensors) {
  std::vector<std::string> keys;
  for (const TensorSpec& input : inputs_) {
    if (!absl::StartsWith(input.name, path + ".")) {
      continue;
    }
    std::string key = input.name.substr(path.size() + 1);
    key = of_tensors ? key : key.substr(0, key.find('.'));
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      keys.push_back(std::move(key));
    }
  }
  for (size_t k = 0; list && k < keys.size(); ++k) {
    keys[k] = absl::StrCat(k);  // Find() fails for a missing index.
  }
  return keys;
}

std::optional<size_t> InputsInOrder::Find(const std::string& path) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].scalar && inputs_[i].name == path) {
      return i;
    }
  }
  if (next_ == order_.size()) {
    return std::nullopt;
  }
  const size_t input = order_[next_++];
  const std::string& name = inputs_[input].name;
  if (path == name || absl::EndsWith(path, absl::StrCat(".", name))) {
    name_matches_.insert(input);
  }
  return input;
}

std::vector<std::string> InputsInOrder::Keys(const std::string&, bool list, bool of_tensors) {
  std::vector<std::string> keys;
  // Elements of a dict with several tensors each cannot be matched by position.
  for (size_t k = 0; k < form_.elements && (list || of_tensors); ++k) {
    keys.push_back(list || next_ + k >= order_.size() ? absl::StrCat(k)
                                                      : inputs_[order_[next_ + k]].name);
  }
  return keys;
}

// Returns the datatype of an int, bool or float type or of its Optional; nullopt for other types.
std::optional<DataType> ScalarTypeOf(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return ScalarTypeOf(*type.expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::IntType:
      return DataType::kInt64;
    case c10::TypeKind::BoolType:
      return DataType::kBool;
    case c10::TypeKind::FloatType:
      return DataType::kFp64;
    default:
      return std::nullopt;
  }
}

bool HoldsTensors(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::OptionalType:
    case c10::TypeKind::TupleType:
    case c10::TypeKind::ListType:
    case c10::TypeKind::DictType: {
      const auto parts = type.containedTypes();
      return std::any_of(parts.begin(), parts.end(),
                         [](const c10::TypePtr& part) { return HoldsTensors(*part); });
    }
    default:
      return false;
  }
}

// Counts the tensors that a call takes.
struct TensorCounts {
  size_t single = 0;     // tensors outside of lists and dicts
  size_t lists = 0;      // lists and dicts, including nested ones
  size_t element = 0;    // tensors in each element of the list or dict
  size_t optionals = 0;  // optional values with tensors

  // given: number of optional values that are present, the first ones.
  void Add(const c10::TypePtr& type, size_t given) {
    if (const auto optional = type->cast<c10::OptionalType>()) {
      AddOptional(optional->getElementType(), given);
    } else if (const auto tuple = type->cast<c10::TupleType>()) {
      for (const c10::TypePtr& part : tuple->elements()) {
        Add(part, given);
      }
    } else if (type->kind() == c10::TypeKind::TensorType) {
      ++single;
    } else if (HoldsTensors(*type)) {
      TensorCounts inner;
      inner.Add(type->containedTypes().back(), std::numeric_limits<size_t>::max());
      lists += 1 + inner.lists;
      element = inner.single;
    }
  }
  void AddOptional(const c10::TypePtr& type, size_t given) {
    if (HoldsTensors(*type) && optionals++ < given) {
      Add(type, given);
    }
  }
};

// Lists the forms of a call that take `tensors` tensors by position. Empty for a call with several
// lists: positions do not determine where a list ends.
std::vector<CallForm> PossibleForms(const c10::FunctionSchema& schema, size_t tensors) {
  std::vector<CallForm> forms;
  for (size_t given = 0;; ++given) {
    TensorCounts counts;
    for (size_t a = 1; a < schema.arguments().size(); ++a) {
      const c10::Argument& argument = schema.arguments()[a];
      if (argument.default_value() && !argument.type()->cast<c10::OptionalType>()) {
        counts.AddOptional(argument.type(), given);
      } else {
        counts.Add(argument.type(), given);
      }
    }
    const size_t rest = tensors - std::min(tensors, counts.single);
    if (counts.lists == 0 && counts.single == tensors) {
      forms.push_back({given, 0});
    } else if (counts.lists == 1 && counts.element > 0 && rest > 0 && rest % counts.element == 0) {
      forms.push_back({given, rest / counts.element});
    }
    if (given >= counts.optionals) {
      return forms;
    }
  }
}

// Returns a plan for the value at `path`; nullopt if it has no input. in_list: the value is in a
// list or dict, whose elements are all present.
std::optional<ArgumentPlan> Plan(const c10::TypePtr& type, const std::string& path, bool in_list,
                                 InputFinder* finder);

std::optional<ArgumentPlan> PlanParts(Kind kind, const c10::TypePtr& type,
                                      const std::vector<c10::TypePtr>& elements,
                                      std::vector<std::string> keys, const std::string& path,
                                      bool in_list, InputFinder* finder) {
  ArgumentPlan plan{kind, type};
  for (size_t k = 0; k < keys.size(); ++k) {
    std::optional<ArgumentPlan> part =
        Plan(elements[std::min(k, elements.size() - 1)], absl::StrCat(path, ".", keys[k]),
             in_list || kind != Kind::kTuple, finder);
    if (!part) {
      return std::nullopt;
    }
    plan.parts.push_back(*std::move(part));
  }
  plan.keys = std::move(keys);
  return plan.parts.empty() ? std::nullopt : std::optional(std::move(plan));
}

std::optional<ArgumentPlan> Plan(const c10::TypePtr& type, const std::string& path, bool in_list,
                                 InputFinder* finder) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    const c10::TypePtr& element = optional->getElementType();
    if (!in_list && HoldsTensors(*element) && !finder->TakesOptional()) {
      return ArgumentPlan{};
    }
    const size_t before = finder->used();
    std::optional<ArgumentPlan> plan = Plan(element, path, in_list, finder);
    // A value with some of its inputs is not omitted.
    return plan || finder->used() > before ? std::move(plan) : ArgumentPlan{};
  }
  if (const auto tuple = type->cast<c10::TupleType>()) {
    std::vector<std::string> keys;
    for (size_t k = 0; k < tuple->elements().size(); ++k) {
      keys.push_back(PartName(*tuple, k));
    }
    return PlanParts(Kind::kTuple, type, tuple->elements().vec(), std::move(keys), path, in_list,
                     finder);
  }
  const bool list = type->kind() == c10::TypeKind::ListType;
  if (list ||
      (type->kind() == c10::TypeKind::DictType &&
       type->expectRef<c10::DictType>().getKeyType()->kind() == c10::TypeKind::StringType)) {
    const c10::TypePtr element = list ? type->expectRef<c10::ListType>().getElementType()
                                      : type->expectRef<c10::DictType>().getValueType();
    std::vector<std::string> keys =
        finder->Keys(path, list, element->kind() == c10::TypeKind::TensorType);
    return PlanParts(list ? Kind::kList : Kind::kDict, type, {element}, std::move(keys), path,
                     in_list, finder);
  }
  const bool scalar = ScalarTypeOf(*type).has_value();
  if (scalar || type->kind() == c10::TypeKind::TensorType) {
    if (const std::optional<size_t> input = finder->Find(path)) {
      return ArgumentPlan{scalar ? Kind::kScalar : Kind::kTensor, type, *input};
    }
  }
  return std::nullopt;
}

// Returns plans for all arguments; nullopt if a required argument has no input. Finds the inputs of
// later arguments in either case.
std::optional<std::vector<ArgumentPlan>> PlanAll(const c10::FunctionSchema& schema,
                                                 InputFinder* finder) {
  std::vector<ArgumentPlan> plans;
  bool complete = true;
  for (size_t a = 1; a < schema.arguments().size(); ++a) {
    const c10::Argument& argument = schema.arguments()[a];
    const size_t before = finder->used();
    const bool optional = argument.default_value() && HoldsTensors(*argument.type()) &&
                          !argument.type()->cast<c10::OptionalType>();
    std::optional<ArgumentPlan> plan;
    if (!optional || finder->TakesOptional()) {
      plan = Plan(argument.type(), argument.name(), /*in_list=*/false, finder);
    }
    const bool given = plan && plan->kind != Kind::kConstant;
    if (!given && argument.default_value() && finder->used() == before) {
      plan = ArgumentPlan{};
      plan->constant = *argument.default_value();
    }
    complete = complete && plan;
    plans.push_back(std::move(plan).value_or(ArgumentPlan{}));
  }
  return complete ? std::optional(std::move(plans)) : std::nullopt;
}

// Returns the indices of the tensors among `inputs` by position: by number if all are numbered.
absl::StatusOr<std::vector<size_t>> OrderTensors(const std::vector<TensorSpec>& inputs,
                                                 const c10::FunctionSchema& schema) {
  std::vector<TensorSpec> tensors;
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].scalar) {
      tensors.push_back(inputs[i]);
      places.push_back(i);
    }
  }
  const std::optional<std::vector<size_t>> numbers = NumberedPositions(tensors);
  if (!numbers) {
    return places;
  }
  std::vector<std::optional<size_t>> at(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if ((*numbers)[i] >= at.size() || at[(*numbers)[i]]) {
      return absl::FailedPreconditionError(
          absl::StrCat("the number of input '", tensors[i].name,
                       "' is a duplicate or out of range (expected the numbers 0 to ",
                       tensors.size() - 1, " for ", CallText(schema), ")"));
    }
    at[(*numbers)[i]] = places[i];
  }
  std::vector<size_t> order;
  for (const std::optional<size_t>& place : at) {
    order.push_back(*place);
  }
  return order;
}

absl::Status CountMismatch(size_t tensors, const c10::FunctionSchema& schema) {
  return absl::FailedPreconditionError(absl::StrCat("the configuration names ", tensors,
                                                    " inputs; the model takes ", CallText(schema)));
}

// True if `name` has the form ARGUMENT.PART and the argument is a tuple, list or dict.
bool NamesPart(const std::string& name, const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin() + 1, schema.arguments().end(),
                     [&name](const c10::Argument& argument) {
                       return argument.type()->kind() != c10::TypeKind::TensorType &&
                              absl::StartsWith(name, absl::StrCat(argument.name(), "."));
                     });
}

// FAILED_PRECONDITION if matching by position contradicts a name: a tensor would be passed to
// another argument than the one it is named after, or only some names match.
absl::Status CheckPositions(const std::vector<TensorSpec>& inputs, const InputsByName& by_name,
                            const InputsInOrder& in_order, const c10::FunctionSchema& schema) {
  size_t tensors = 0;
  size_t numbered = 0;
  bool named = false;
  bool agrees = true;
  const TensorSpec* unknown = nullptr;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].scalar) {
      continue;
    }
    const bool number = NumberedPositions({inputs[i]}).has_value();
    ++tensors;
    numbered += number ? 1 : 0;
    named = named || number || by_name.found(i) || NamesPart(inputs[i].name, schema);
    agrees = agrees && in_order.name_matches(i);
    if (unknown == nullptr && !by_name.found(i) && !in_order.name_matches(i)) {
      unknown = &inputs[i];
    }
  }
  if (!named || agrees || numbered == tensors) {
    return absl::OkStatus();
  }
  if (unknown == nullptr) {
    return CountMismatch(tensors, schema);
  }
  return absl::FailedPreconditionError(absl::StrCat("unknown input '", unknown->name,
                                                    "'; the model takes ", CallText(schema),
                                                    " (name or number all inputs, or none)"));
}

// Call that takes the inputs by position.
struct OrderedCall {
  InputsInOrder inputs;
  std::vector<ArgumentPlan> plans;
};

// Selects the only call, or of several the only one whose values all have the inputs' names.
absl::StatusOr<OrderedCall*> SelectCall(std::vector<OrderedCall>* calls, size_t tensors,
                                        const c10::FunctionSchema& schema) {
  if (calls->empty()) {
    return CountMismatch(tensors, schema);
  }
  OrderedCall* only = calls->size() == 1 ? &calls->front() : nullptr;
  size_t named = 0;
  for (OrderedCall& call : *calls) {
    if (call.inputs.all_names_match()) {
      only = &call;
      ++named;
    }
  }
  if (only != nullptr && named <= 1) {
    return only;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the configuration names ", tensors, " inputs, which are ambiguous for ", CallText(schema),
      " (name them after the arguments and their elements, for example x.0)"));
}

// FAILED_PRECONDITION if a key of a dict is only a position, such as input__0.
absl::Status CheckKeys(const std::vector<ArgumentPlan>& plans, const c10::FunctionSchema& schema) {
  for (const ArgumentPlan& plan : plans) {
    BRAID_RETURN_IF_ERROR(CheckKeys(plan.parts, schema));
    for (const std::string& key : plan.keys) {
      if (plan.kind == Kind::kDict && absl::StartsWithIgnoreCase(key, "input__") &&
          NumberedPositions({TensorSpec{key, DataType::kFp32, {}}})) {
        return absl::FailedPreconditionError(
            absl::StrCat("input '", key, "' has a number, but ", CallText(schema),
                         " takes a dict (name the input after the key, or after argument and key, "
                         "for example x.key)"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string PartName(const c10::TupleType& tuple, size_t index) {
  return tuple.schema() ? tuple.schema()->arguments()[index].name() : absl::StrCat(index);
}

absl::StatusOr<std::vector<ArgumentPlan>> PlanArguments(const std::vector<TensorSpec>& inputs,
                                                        const c10::FunctionSchema& schema) {
  InputsByName by_name(inputs);
  std::optional<std::vector<ArgumentPlan>> plans = PlanAll(schema, &by_name);
  if (plans && by_name.all_found()) {
    return *std::move(plans);
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<size_t> order, OrderTensors(inputs, schema));
  std::vector<OrderedCall> calls;
  for (const CallForm& form : PossibleForms(schema, order.size())) {
    InputsInOrder in_order(inputs, order, form);
    plans = PlanAll(schema, &in_order);
    if (plans && in_order.all_found()) {
      calls.push_back({std::move(in_order), *std::move(plans)});
    }
  }
  BRAID_ASSIGN_OR_RETURN(OrderedCall * call, SelectCall(&calls, order.size(), schema));
  BRAID_RETURN_IF_ERROR(CheckPositions(inputs, by_name, call->inputs, schema));
  BRAID_RETURN_IF_ERROR(CheckKeys(call->plans, schema));
  return std::move(call->plans);
}

c10::IValue MakeArgument(const ArgumentPlan& plan, const std::vector<at::Tensor>& inputs) {
  switch (plan.kind) {
    case Kind::kTensor:
      return inputs.at(plan.input);
    case Kind::kScalar: {
      if (inputs.at(plan.input).numel() == 0) {
        return {};
      }
      const at::Scalar value = inputs[plan.input].item();
      return plan.type->kind() == c10::TypeKind::IntType    ? c10::IValue(value.toLong())
             : plan.type->kind() == c10::TypeKind::BoolType ? c10::IValue(value.toBool())
                                                            : c10::IValue(value.toDouble());
    }
    case Kind::kConstant:
      return plan.constant;
    case Kind::kTuple: {
      std::vector<c10::IValue> parts;
      for (const ArgumentPlan& part : plan.parts) {
        parts.push_back(MakeArgument(part, inputs));
      }
      const auto type = plan.type->expect<c10::TupleType>();
      return type->schema() ? c10::ivalue::Tuple::createNamed(std::move(parts), type)
                            : c10::ivalue::Tuple::create(std::move(parts));
    }
    case Kind::kList: {
      c10::impl::GenericList list(plan.type->expectRef<c10::ListType>().getElementType());
      for (const ArgumentPlan& part : plan.parts) {
        list.push_back(MakeArgument(part, inputs));
      }
      return list;
    }
    case Kind::kDict: {
      const auto& type = plan.type->expectRef<c10::DictType>();
      c10::impl::GenericDict dict(type.getKeyType(), type.getValueType());
      for (size_t k = 0; k < plan.keys.size(); ++k) {
        dict.insert(plan.keys[k], MakeArgument(plan.parts[k], inputs));
      }
      return dict;
    }
  }
  return {};
}

std::vector<TensorSpec> ScalarArguments(const c10::FunctionSchema& schema) {
  std::vector<TensorSpec> specs;
  for (size_t a = 1; a < schema.arguments().size(); ++a) {
    const c10::Argument& argument = schema.arguments()[a];
    const std::optional<DataType> type = ScalarTypeOf(*argument.type());
    if (!type) {
      continue;
    }
    TensorSpec spec{argument.name(), *type, {}, /*broadcast=*/true};
    spec.scalar = true;
    if (const auto& value = argument.default_value()) {
      spec.default_value = value->isNone()   ? ScalarValue()
                           : value->isInt()  ? ScalarValue(value->toInt())
                           : value->isBool() ? ScalarValue(value->toBool())
                                             : ScalarValue(value->toDouble());
    } else if (argument.type()->kind() == c10::TypeKind::OptionalType) {
      spec.default_value = ScalarValue();
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::string CallText(const c10::FunctionSchema& schema) {
  std::vector<std::string> names;
  for (size_t a = 1; a < schema.arguments().size(); ++a) {
    const c10::Argument& argument = schema.arguments()[a];
    const bool tensor = argument.type()->kind() == c10::TypeKind::TensorType;
    names.push_back(tensor
                        ? argument.name()
                        : absl::StrCat(argument.name(), ": ", argument.type()->annotation_str()));
  }
  return absl::StrCat("forward(", absl::StrJoin(names, ", "), ")");
}

}  // namespace braid
