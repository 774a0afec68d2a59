// Which of a program's tensors outlive a run and are written to by it.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json_fields.h"

namespace braid {

// Those of the inputs `given` that `graph`, as CheckGraph() takes it, writes to, itself or
// through a view of them. FAILED_PRECONDITION if it writes so to another of its inputs, its
// parameters, buffers and constants: it would give something else each time.
absl::StatusOr<std::set<std::string>> MutatedInputs(const JsonField& graph,
                                                    const std::set<std::string>& given);

}  // namespace braid
