// What a module's forward changes of the module, and so has the next call find.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "torch/csrc/jit/api/module.h"

namespace braid {

// A change of an attribute of the module or of one in it.
struct StateChange {
  enum class Kind { kParameter, kBuffer, kOther };

  std::string attribute;  // "encoder.calls"
  Kind kind;
  std::string how;  // "assigns", or "changes in place (aten::add_)"
};

// In which mode forward is run.
enum class Reach { kBothModes, kEvaluation };

// What forward may change, whichever way it goes. What it changes of its arguments, or of what it
// made itself, does not count. A buffer that is None is kOther: there is no tensor to be kept.
std::vector<StateChange> FindStateChanges(const torch::jit::Module& module, Reach reach);

// False if a forward pass in evaluation mode leaves the module as it was, whatever it is given.
// True too where that cannot be told: a method is called of what is chosen as it runs.
bool MayChangeStateInEval(const torch::jit::Module& module);

// "assigns 'encoder.calls', which is no buffer".
std::string Describe(const StateChange& change);

// Whether training keeps all that forward changes: FAILED_PRECONDITION, naming the attribute and
// what would be right, if that is more than buffers.
absl::Status CheckOnlyBuffersChange(const torch::jit::Module& module);

}  // namespace braid
