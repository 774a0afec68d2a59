// Compiled graph: a list of instructions over registers. Compile() creates it and Executor runs it.
//
// Plain data. Constant after compilation, so that several threads may run it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "ATen/core/jit_type.h"
#include "c10/core/DeviceType.h"
#include "c10/core/ScalarType.h"
#include "server/graph/arithmetic.h"

namespace braid {

// Index of a register. It is written once and holds a value until its last use.
using Slot = uint32_t;
inline constexpr Slot kNowhere = UINT32_MAX;

// Argument of an instruction, or output of a graph.
struct Operand {
  enum class Kind : uint8_t {
    kConstant,
    kRegister,
    kRegisterAsFloat,   // converts an integer to a float
    kRegisterAsInt,     // converts a boolean to an integer
    kRegisterAsTensor,  // converts a number to a tensor
    kDevice,            // the device that the graph runs on
    kList,
  };

  Kind kind = Kind::kConstant;
  bool last_use = false;  // of the register
  Slot slot = kNowhere;
  c10::IValue constant;
  c10::TypePtr element;        // of a list
  std::vector<Operand> items;  // of a list
};

// Destination of one value that an instruction returns.
struct Result {
  Slot slot = kNowhere;
  bool is_list = false;
  std::vector<Slot> items;  // of a list of tensors, each to a register of its own
};

struct Region;

// One of `op`, `arithmetic` and `region`.
struct Instruction {
  std::optional<c10::OperatorHandle> op;
  const Arithmetic* arithmetic = nullptr;
  std::shared_ptr<const Region> region;

  std::vector<Operand> operands;
  std::vector<Result> results;
  // Has side effects, so that it must run even if its results are unused.
  bool has_effects = false;
  // Writes to one of its arguments.
  bool writes = false;
  // Outputs of the graph that are final after it has run.
  std::vector<size_t> final_outputs;

  // For messages.
  std::string name;    // the node's
  std::string target;  // "aten::linear"
  std::string line;    // of the model
};

struct Code {
  std::vector<Slot> inputs;  // kNowhere: unused
  std::vector<Instruction> instructions;
  std::vector<Operand> outputs;
  // Outputs that are inputs of the graph.
  std::vector<size_t> given_outputs;
  Slot registers = 0;
};

// Control flow: an instruction that runs nested graphs on its operands.
struct Region {
  enum class Kind : uint8_t {
    kCond,      // operands: predicate and arguments; runs bodies[0] if true, else bodies[1]
    kWhile,     // runs bodies[1] while bodies[0] is true; the first `carried` operands change
    kMap,       // runs bodies[0] for each slice of the first `carried` operands, stacks the results
    kAutocast,  // runs bodies[0] under autocast
  };

  Kind kind = Kind::kCond;
  std::vector<Code> bodies;
  size_t carried = 0;
  c10::DeviceType autocast_device = c10::kCPU;
  std::optional<c10::ScalarType> autocast_type;  // nullopt: the device's default
  bool autocast_enabled = true;
};

}  // namespace braid
