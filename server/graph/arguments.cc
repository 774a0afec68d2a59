#include "server/graph/arguments.h"

#include <optional>
#include <utility>

#include "ATen/ScalarOps.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/graph/schema_types.h"

namespace braid {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

Value Constant(IValue constant, ValueType type = ValueType::kOther) {
  Value value;
  value.operand.constant = std::move(constant);
  value.type = type;
  return value;
}

// Returns the kind of the elements of a list kind; empty if `kind` is not a list.
absl::string_view ElementKind(absl::string_view kind) {
  static constexpr std::pair<absl::string_view, absl::string_view> kLists[] = {
      {"as_bools", "as_bool"},
      {"as_floats", "as_float"},
      {"as_int_lists", "as_ints"},
      {"as_ints", "as_int"},
      {"as_nested_tensors", "as_tensors"},
      {"as_optional_tensors", "as_optional_tensor"},
      {"as_strings", "as_string"},
      {"as_sym_bools", "as_sym_bool"},
      {"as_sym_floats", "as_sym_float"},
      {"as_sym_ints", "as_sym_int"},
      {"as_tensors", "as_tensor"},
  };
  for (const auto& [list, element] : kLists) {
    if (list == kind) {
      return element;
    }
  }
  return "";
}

// Kind and value of an argument: {"as_int": 1} is ("as_int", 1).
struct Argument {
  std::string kind;
  JsonField value;
};

absl::StatusOr<Argument> Open(const JsonField& field) {
  BRAID_ASSIGN_OR_RETURN(std::string kind, field.OnlyKey());
  BRAID_ASSIGN_OR_RETURN(JsonField value, field.Get(kind.c_str()));
  return Argument{std::move(kind), std::move(value)};
}

// Reads the elements of `argument`, a list.
absl::StatusOr<std::vector<Argument>> ElementsOf(const Argument& argument) {
  const std::string kind(ElementKind(argument.kind));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, argument.value.Items());
  std::vector<Argument> elements;
  elements.reserve(items.size());
  for (const JsonField& item : items) {
    elements.push_back({kind, item});
  }
  return elements;
}

template <typename Type>
absl::StatusOr<Value> ReadSchemaType(const JsonField& field, std::optional<Type> (*find)(int64_t)) {
  BRAID_ASSIGN_OR_RETURN(const int64_t number, field.Integer());
  const std::optional<Type> type = find(number);
  if (!type) {
    return field.Error(absl::StrCat("unknown type code ", number));
  }
  return Constant(static_cast<int64_t>(*type), ValueType::kInt);
}

absl::StatusOr<Value> ReadDevice(const JsonField& field) {
  BRAID_ASSIGN_OR_RETURN(const JsonField type, field.Get("type"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, type.String());
  if (name == "cpu") {
    return Constant(c10::Device(c10::kCPU));
  }
  if (name == "meta") {
    return Constant(c10::Device(c10::kMeta));
  }
  if (name != "cuda") {
    return type.Error(absl::StrCat("unknown device '", Excerpt(name), "' (expected cpu or cuda)"));
  }
  Value value;
  value.operand.kind = Operand::Kind::kDevice;
  return value;
}

absl::StatusOr<Value> ReadComplex(const JsonField& field) {
  BRAID_ASSIGN_OR_RETURN(const JsonField real_field, field.Get("real"));
  BRAID_ASSIGN_OR_RETURN(const double real, real_field.Number());
  BRAID_ASSIGN_OR_RETURN(const JsonField imaginary_field, field.Get("imag"));
  BRAID_ASSIGN_OR_RETURN(const double imaginary, imaginary_field.Number());
  return Constant(c10::complex<double>(real, imaginary));
}

absl::StatusOr<Value> FindIn(const JsonField& field, const char* name, const Values& values) {
  BRAID_ASSIGN_OR_RETURN(const JsonField text, field.Get(name));
  BRAID_ASSIGN_OR_RETURN(const std::string found, text.String());
  return values.Find(field, found);
}

absl::StatusOr<Value> ReadSingle(const Argument& argument, const Values& values);

// Reads {"as_name": …}, or a constant with the key `constant`.
absl::StatusOr<Value> ReadSymbol(const JsonField& field, const char* constant,
                                 const Values& values) {
  if (field.Has("as_name")) {
    return FindIn(field, "as_name", values);
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField value, field.Get(constant));
  return ReadSingle({constant, value}, values);
}

absl::StatusOr<Value> ReadSingle(const Argument& argument, const Values& values) {
  const auto& [kind, value] = argument;
  if (kind == "as_tensor") {
    return FindIn(value, "name", values);
  }
  if (kind == "as_none") {
    return Constant(IValue());
  }
  if (kind == "as_optional_tensor") {
    BRAID_ASSIGN_OR_RETURN(const Argument given, Open(value));
    if (given.kind != "as_tensor" && given.kind != "as_none") {
      return value.Error("expected as_tensor or as_none");
    }
    return ReadSingle(given, values);
  }
  if (kind == "as_int") {
    BRAID_ASSIGN_OR_RETURN(const int64_t number, value.Integer());
    return Constant(number, ValueType::kInt);
  }
  if (kind == "as_float") {
    BRAID_ASSIGN_OR_RETURN(const double number, value.Number());
    return Constant(number, ValueType::kFloat);
  }
  if (kind == "as_bool") {
    BRAID_ASSIGN_OR_RETURN(const bool flag, value.Boolean());
    return Constant(flag, ValueType::kBool);
  }
  if (kind == "as_string") {
    BRAID_ASSIGN_OR_RETURN(std::string text, value.String());
    return Constant(std::move(text));
  }
  if (kind == "as_sym_int") {
    return ReadSymbol(value, "as_int", values);
  }
  if (kind == "as_sym_float") {
    return ReadSymbol(value, "as_float", values);
  }
  if (kind == "as_sym_bool") {
    return ReadSymbol(value, "as_bool", values);
  }
  if (kind == "as_scalar_type") {
    return ReadSchemaType(value, SchemaScalarType);
  }
  if (kind == "as_layout") {
    return ReadSchemaType(value, SchemaLayout);
  }
  if (kind == "as_memory_format") {
    return ReadSchemaType(value, SchemaMemoryFormat);
  }
  if (kind == "as_device") {
    return ReadDevice(value);
  }
  if (kind == "as_complex") {
    return ReadComplex(value);
  }
  return value.Error("unsupported argument (expected a tensor, a number, or a list of them)");
}

// Returns the error for an argument that does not have the type `wanted`.
absl::Status WrongType(const JsonField& field, const TypePtr& wanted) {
  return field.Error(absl::StrCat("wrong type of argument (expected ", wanted->str(), ")"));
}

bool IsNumber(ValueType type) {
  return type == ValueType::kInt || type == ValueType::kFloat || type == ValueType::kBool;
}

double AsDouble(const IValue& number) {
  return number.isDouble() ? number.toDouble()
         : number.isBool() ? static_cast<double>(number.toBool())
                           : static_cast<double>(number.toInt());
}

// Returns a number as a tensor that does not take part in type promotion.
IValue AsTensor(const IValue& number) {
  at::Tensor tensor = at::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Returns an operand that converts the register of `value`.
Operand Converted(const Value& value, Operand::Kind kind) {
  Operand operand = value.operand;
  operand.kind = kind;
  return operand;
}

Operand ConstantOperand(IValue constant) { return Constant(std::move(constant)).operand; }

absl::StatusOr<Operand> ToTensor(const JsonField& field, const Value& value,
                                 const TypePtr& wanted) {
  const IValue& constant = value.operand.constant;
  if (value.type == ValueType::kTensor) {
    return value.operand;
  }
  const bool is_constant = value.operand.kind == Operand::Kind::kConstant;
  if (is_constant && constant.isNone()) {
    return ConstantOperand(at::Tensor());
  }
  if (is_constant && (IsNumber(value.type) || constant.isComplexDouble())) {
    return ConstantOperand(AsTensor(constant));
  }
  if (IsNumber(value.type)) {
    return Converted(value, Operand::Kind::kRegisterAsTensor);
  }
  return WrongType(field, wanted);
}

absl::StatusOr<Operand> ToFloat(const JsonField& field, const Value& value, const TypePtr& wanted) {
  if (value.type == ValueType::kFloat) {
    return value.operand;
  }
  if (!IsNumber(value.type)) {
    return WrongType(field, wanted);
  }
  return value.operand.kind == Operand::Kind::kConstant
             ? ConstantOperand(AsDouble(value.operand.constant))
             : Converted(value, Operand::Kind::kRegisterAsFloat);
}

absl::StatusOr<Operand> ToInt(const JsonField& field, const Value& value, const TypePtr& wanted) {
  if (value.type == ValueType::kInt) {
    return value.operand;
  }
  if (value.type != ValueType::kBool) {
    return WrongType(field, wanted);
  }
  return value.operand.kind == Operand::Kind::kConstant
             ? ConstantOperand(int64_t{value.operand.constant.toBool()})
             : Converted(value, Operand::Kind::kRegisterAsInt);
}

// Accepts enumerator numbers below `count`.
absl::StatusOr<Operand> ToEnumerator(const JsonField& field, const Value& value,
                                     const TypePtr& wanted, int64_t count) {
  if (value.type != ValueType::kInt || value.operand.kind != Operand::Kind::kConstant ||
      value.operand.constant.toInt() < 0 || value.operand.constant.toInt() >= count) {
    return WrongType(field, wanted);
  }
  return value.operand;
}

absl::StatusOr<Operand> ToNumber(const JsonField& field, const Value& value,
                                 const TypePtr& wanted) {
  if (IsNumber(value.type) || value.operand.constant.isComplexDouble()) {
    return value.operand;
  }
  return WrongType(field, wanted);
}

absl::StatusOr<Operand> Convert(const JsonField& field, const Value& value, const TypePtr& wanted) {
  const IValue& constant = value.operand.constant;
  switch (wanted->kind()) {
    case TypeKind::TensorType:
      return ToTensor(field, value, wanted);
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return ToInt(field, value, wanted);
    case TypeKind::ScalarTypeType:
      return ToEnumerator(field, value, wanted, static_cast<int64_t>(c10::ScalarType::NumOptions));
    case TypeKind::LayoutType:
      return ToEnumerator(field, value, wanted, static_cast<int64_t>(c10::Layout::NumOptions));
    case TypeKind::MemoryFormatType:
      return ToEnumerator(field, value, wanted,
                          static_cast<int64_t>(c10::MemoryFormat::NumOptions));
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return ToFloat(field, value, wanted);
    case TypeKind::NumberType:
      return ToNumber(field, value, wanted);
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      if (value.type == ValueType::kBool) {
        return value.operand;
      }
      break;
    case TypeKind::StringType:
      if (constant.isString()) {
        return value.operand;
      }
      break;
    case TypeKind::DeviceObjType:
      if (value.operand.kind == Operand::Kind::kDevice || constant.isDevice()) {
        return value.operand;
      }
      break;
    default:
      break;
  }
  return WrongType(field, wanted);
}

absl::StatusOr<Operand> Read(const Argument& argument, const TypePtr& wanted, const Values& values);

// Creates constant lists once instead of in each run.
Operand MakeList(TypePtr element, std::vector<Operand> items) {
  Operand list;
  c10::impl::GenericList constant(element);
  for (const Operand& item : items) {
    if (item.kind != Operand::Kind::kConstant) {
      list.kind = Operand::Kind::kList;
      list.element = std::move(element);
      list.items = std::move(items);
      return list;
    }
    constant.push_back(item.constant);
  }
  list.constant = constant;
  return list;
}

absl::StatusOr<Operand> ReadList(const Argument& argument, const TypePtr& element,
                                 const Values& values) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<Argument> elements, ElementsOf(argument));
  std::vector<Operand> items;
  items.reserve(elements.size());
  for (const Argument& each : elements) {
    BRAID_ASSIGN_OR_RETURN(items.emplace_back(), Read(each, element, values));
  }
  return MakeList(element, std::move(items));
}

absl::StatusOr<Operand> Read(const Argument& argument, const TypePtr& wanted,
                             const Values& values) {
  if (wanted->kind() == TypeKind::OptionalType) {
    const bool is_none = argument.kind == "as_none" ||
                         (argument.kind == "as_optional_tensor" && argument.value.Has("as_none"));
    if (is_none) {
      return Operand();
    }
    return Read(argument, wanted->castRaw<c10::OptionalType>()->getElementType(), values);
  }
  const bool is_list = !ElementKind(argument.kind).empty();
  if (wanted->kind() == TypeKind::ListType && is_list) {
    return ReadList(argument, wanted->castRaw<c10::ListType>()->getElementType(), values);
  }
  if (is_list) {
    return WrongType(argument.value, wanted);
  }
  BRAID_ASSIGN_OR_RETURN(const Value value, ReadSingle(argument, values));
  return Convert(argument.value, value, wanted);
}

// True for types that appear as int in a schema.
bool IsEnumerator(const TypePtr& type) {
  const auto* optional = type->castRaw<c10::OptionalType>();
  const TypeKind kind = (optional != nullptr ? optional->getElementType() : type)->kind();
  return kind == TypeKind::ScalarTypeType || kind == TypeKind::LayoutType ||
         kind == TypeKind::MemoryFormatType;
}

// Returns the element type of a list that accepts one number for all elements: int[2] or int[2]?.
TypePtr RepeatedElement(const c10::Argument& wanted) {
  TypePtr type = wanted.type();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  const auto* list = type->castRaw<c10::ListType>();
  return list != nullptr && wanted.N() ? list->getElementType() : nullptr;
}

}  // namespace

absl::Status Values::Define(const JsonField& field, const std::string& name, Value value) {
  return values_.emplace(name, std::move(value)).second
             ? absl::OkStatus()
             : field.Error(absl::StrCat("'", Excerpt(name), "' is defined twice"));
}

absl::StatusOr<Value> Values::Find(const JsonField& field, const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    return field.Error(
        absl::StrCat("'", Excerpt(name), "' is undefined (expected a value of an earlier node)"));
  }
  return found->second;
}

absl::StatusOr<Value> ReadValue(const JsonField& field, const Values& values) {
  BRAID_ASSIGN_OR_RETURN(const Argument argument, Open(field));
  return ReadSingle(argument, values);
}

absl::StatusOr<Operand> ReadArgument(const JsonField& field, const c10::Argument& wanted,
                                     const Values& values) {
  BRAID_ASSIGN_OR_RETURN(const Argument argument, Open(field));
  const TypePtr element = RepeatedElement(wanted);
  if (element == nullptr || !ElementKind(argument.kind).empty() || argument.kind == "as_none") {
    return Read(argument, IsEnumerator(wanted.real_type()) ? wanted.real_type() : wanted.type(),
                values);
  }
  BRAID_ASSIGN_OR_RETURN(const Operand item, Read(argument, element, values));
  return MakeList(element, std::vector<Operand>(static_cast<size_t>(*wanted.N()), item));
}

absl::StatusOr<std::vector<Value>> ReadValues(const JsonField& field, const Values& values) {
  BRAID_ASSIGN_OR_RETURN(const Argument argument, Open(field));
  std::vector<Argument> elements = {argument};
  if (!ElementKind(argument.kind).empty()) {
    BRAID_ASSIGN_OR_RETURN(elements, ElementsOf(argument));
  }
  std::vector<Value> read;
  for (const Argument& element : elements) {
    BRAID_ASSIGN_OR_RETURN(read.emplace_back(), ReadSingle(element, values));
  }
  return read;
}

}  // namespace braid
