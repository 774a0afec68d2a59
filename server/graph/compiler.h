// From the graph of a torch.export program, in JSON, to code.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/json_fields.h"
#include "server/graph/code.h"

namespace braid {

// Names of the graph's inputs that are constants, by their index; of the others: empty. The graph
// itself has no names for them.
using ConstantNames = std::vector<std::string>;

// Resolves each operator once, with its overload, and fits arguments to its schema.
// FAILED_PRECONDITION that says where, and names the operator and the model's line, if the graph
// names operators or values that do not exist, or fits no schema. Thread-safe.
absl::StatusOr<Code> Compile(const JsonField& graph, const ConstantNames& constants = {});

}  // namespace braid
