// The indices that the compiled kernels of an AOTInductor package look up in embeddings.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "server/models/archive/package_interface.h"

namespace braid {

// Sets the range of each of `inputs` whose every value is looked up in an embedding, unchanged or
// converted to another integer type. `wrapper`: the package's wrapper.cpp; `kernels`: the source of
// its kernels for a CPU. Compiled code takes -1 for the last row, where PyTorch raises an error.
//
// Returns whether kernels take negative indices of embeddings that no range keeps from them: of
// indices that are computed, or of an input of which a part is looked up.
bool FindAotiEmbeddingRanges(absl::string_view wrapper, absl::string_view kernels,
                             std::vector<PackageInput>* inputs);

}  // namespace braid
