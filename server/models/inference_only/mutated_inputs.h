// Finds the inputs that an exported program modifies in place.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json_fields.h"

namespace braid {

// Returns the inputs in `user_inputs` that `graph` modifies, directly or through a view.
// CheckGraph() must have accepted `graph`. FAILED_PRECONDITION if it modifies any other graph
// input, which is a parameter, buffer or constant: results would depend on earlier requests.
absl::StatusOr<std::set<std::string>> MutatedInputs(const JsonField& graph,
                                                    const std::set<std::string>& user_inputs);

}  // namespace braid
