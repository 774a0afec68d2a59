// Data flow analysis of TorchScript graphs: the attributes of modules that a value may come from.
#pragma once

#include <optional>
#include <vector>

#include "ATen/core/ivalue.h"
#include "torch/csrc/jit/api/module.h"
#include "torch/csrc/jit/ir/ir.h"

namespace braid {

// True if `node` gets or sets an attribute of a module, false for other objects.
bool IsOfModule(const torch::jit::Node& node);

// Returns the prim::GetAttr nodes of module attributes that `value` may be, be a view of, or be an
// element of. Empty for arguments and for values that the graph creates. The graph has no calls.
std::vector<const torch::jit::Node*> AttributesBehind(const torch::jit::Value* value);

// Returns the constant, or the attribute of `module` or its submodules, that `value` is; nullopt if
// it is unknown. If two branches meet and one is known, returns that one. `value` belongs to a
// graph of `module` without calls.
std::optional<c10::IValue> AttributeOf(const torch::jit::Value* value,
                                       const torch::jit::Module& module);

}  // namespace braid
