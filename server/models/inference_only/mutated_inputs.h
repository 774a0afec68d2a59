// Finds the inputs that an exported program modifies in place.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json_fields.h"

namespace braid {

// Returns those of the graph inputs `given` that `graph`, which CheckGraph() accepts, modifies
// directly or through a view. FAILED_PRECONDITION if it modifies any other graph input, which is a
// parameter, buffer or constant: results would depend on earlier requests.
absl::StatusOr<std::set<std::string>> MutatedInputs(const JsonField& graph,
                                                    const std::set<std::string>& given);

}  // namespace braid
