// The ranges of the inputs that a program of torch.export looks up in embeddings.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/base/json_fields.h"
#include "server/models/archive/package_interface.h"

namespace braid {

// Sets the range of each of `inputs` that `graph`, as CheckGraphForm() takes it, looks up in an
// embedding, whole, unchanged or in another shape or integer type. Sets none where the graph
// works in place on integers: that may be what puts them in the range. `names`: of the tensors that
// the inputs are in the graph.
absl::Status FindGraphRanges(const JsonField& graph, const std::vector<std::string>& names,
                             std::vector<PackageInput>* inputs);

}  // namespace braid
