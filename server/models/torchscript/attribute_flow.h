// Where a value of a TorchScript graph comes from: the attributes of modules that it may be.
#pragma once

#include <optional>
#include <vector>

#include "ATen/core/ivalue.h"
#include "torch/csrc/jit/api/module.h"
#include "torch/csrc/jit/ir/ir.h"

namespace braid {

// Whether `node` gets or sets an attribute of a module, not of some other object.
bool IsOfModule(const torch::jit::Node& node);

// The nodes that get the attributes of modules that `value` may be, be a view of, or be an element
// of. None for an argument, or for what the graph makes. The graph has no calls.
std::vector<const torch::jit::Node*> AttributesBehind(const torch::jit::Value* value);

// The constant, or the attribute of `module` or of one in it, that `value` is; where two branches
// meet, the one that is known of the two. `value` is of a graph of `module` that has no calls.
std::optional<c10::IValue> AttributeOf(const torch::jit::Value* value,
                                       const torch::jit::Module& module);

}  // namespace braid
