// The arguments of an exported graph's nodes, in JSON, as operands of instructions.
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

// A register, or a constant, and what it holds.
struct Value {
  Operand operand;
  ValueType type = ValueType::kOther;
};

// The values that a graph has defined so far, by their names.
class Values {
 public:
  // FAILED_PRECONDITION if there is one of that name.
  absl::Status Define(const JsonField& field, const std::string& name, Value value);
  // FAILED_PRECONDITION if there is none: it is misspelled, or used before its definition.
  absl::StatusOr<Value> Find(const JsonField& field, const std::string& name) const;

 private:
  std::map<std::string, Value> values_;
};

// The argument in `field`, such as {"as_int": 1}, without conversion. FAILED_PRECONDITION for a
// list, and for what cannot be run: graphs, classes and other operators.
absl::StatusOr<Value> ReadValue(const JsonField& field, const Values& values);

// The argument in `field` as an operator takes it for `wanted`: an integer for a float becomes one,
// a number for a tensor a tensor of no dimensions, one number for a list of N a list, as in Python.
// FAILED_PRECONDITION if it is of another type.
absl::StatusOr<Operand> ReadArgument(const JsonField& field, const c10::Argument& wanted,
                                     const Values& values);

// One argument, or a list of them, one by one and without conversion.
absl::StatusOr<std::vector<Value>> ReadValues(const JsonField& field, const Values& values);

}  // namespace braid
