// Finds the ranges of embedding indices in the generated kernels of an AOTInductor package.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "server/models/archive/package_interface.h"

namespace braid {

// Sets the range of each of `inputs` whose values are all used as indices of an embedding, possibly
// converted to another integer type. wrapper: the package's wrapper.cpp. kernels: source of its CPU
// kernels. The range matters because compiled code accepts -1 as the last row, where PyTorch raises
// an error.
//
// Returns true if kernels may still accept negative indices: of computed indices, or of an input
// that is only partly used as indices.
bool FindAotiEmbeddingRanges(absl::string_view wrapper, absl::string_view kernels,
                             std::vector<PackageInput>* inputs);

}  // namespace braid
