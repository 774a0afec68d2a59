// Converts arguments of an exported graph's nodes, in JSON, to operands of instructions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/function_schema.h"
#include "absl/status/statusor.h"
#include "server/base/json_fields.h"
#include "server/graph/code.h"

namespace braid {

// Static type of a value in a graph.
enum class ValueType : uint8_t { kTensor, kInt, kFloat, kBool, kOther };

// Register or constant, with its type.
struct Value {
  Operand operand;
  ValueType type = ValueType::kOther;
};

// Values that a graph has defined so far, by name.
class Values {
 public:
  // FAILED_PRECONDITION if the name exists.
  absl::Status Define(const JsonField& field, const std::string& name, Value value);
  // FAILED_PRECONDITION if the name is undefined: misspelled, or used before its definition.
  absl::StatusOr<Value> Find(const JsonField& field, const std::string& name) const;

 private:
  std::map<std::string, Value> values_;
};

// Reads the argument in `field`, such as {"as_int": 1}, without conversion. FAILED_PRECONDITION for
// lists, graphs, classes and operators.
absl::StatusOr<Value> ReadValue(const JsonField& field, const Values& values);

// Reads the argument in `field` and converts it to the declared argument `wanted`, as Python does:
// an integer to a float, a number to a 0-dim tensor, and one number to a list of fixed size.
// FAILED_PRECONDITION for another type.
absl::StatusOr<Operand> ReadArgument(const JsonField& field, const c10::Argument& wanted,
                                     const Values& values);

// Reads one argument, or each element of a list, without conversion.
absl::StatusOr<std::vector<Value>> ReadValues(const JsonField& field, const Values& values);

}  // namespace braid
