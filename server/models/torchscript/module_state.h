// Finds the state of a module that forward() changes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// Change of an attribute of the module or of a submodule.
struct StateChange {
  enum class Kind { kParameter, kBuffer, kOther };

  std::string attribute;  // "encoder.calls"
  Kind kind;
  std::string how;  // "assigns", or "changes in place (aten::add_)"
};

// Modes in which forward() runs.
enum class Modes { kTrainAndEval, kEval };

// Returns the changes that forward() may make in `modes`, on any branch. Changes of arguments, and
// of values that forward() creates, do not count. A buffer that is None is kOther, because it has
// no tensor to save.
std::vector<StateChange> FindStateChanges(const torch::jit::Module& module, Modes modes);

// False if no forward pass in evaluation mode changes the module. True if one may, or if that is
// unknown because forward() calls a method that is chosen at run time.
bool MayChangeStateInEval(const torch::jit::Module& module);

// Describes a change: "assigns 'encoder.calls', which is not a buffer".
std::string Describe(const StateChange& change);

// FAILED_PRECONDITION, naming the attribute and a remedy, if forward() changes anything but
// buffers. Training saves and restores only buffers.
absl::Status CheckOnlyBuffersChange(const torch::jit::Module& module);

}  // namespace braid
