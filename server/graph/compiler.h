// Compiles the graph of a torch.export program, in JSON, to code.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/json_fields.h"
#include "server/graph/code.h"

namespace braid {

// Names of the graph's inputs that are constants, by index; empty for other inputs. The graph
// itself does not name them.
using ConstantNames = std::vector<std::string>;

// Compiles `graph`. Resolves each operator once, with its overload, and converts arguments to its
// schema. FAILED_PRECONDITION naming the node, the operator and the model's source line if an
// operator or value does not exist, or if arguments do not fit the schema. Thread-safe.
absl::StatusOr<Code> Compile(const JsonField& graph, const ConstantNames& constants = {});

}  // namespace braid
