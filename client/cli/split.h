// How a batch was split, as a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "braid/v1/training.pb.h"

namespace braid::cli {

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

// A row for each chunk, with the shapes that its device saw, and one for the whole batch:
//
//   device   rows  in         out
//   cpu:0      10  x [10, 5]  output__0 [10, 2]
//   …
//   outside    30  x [30, 5]  output__0 [30, 2]
//
// A tensor whose dim 0 is not the batch's rows went to every chunk whole. Returns "" without
// chunks.
std::string FormatSplit(const std::vector<NamedShape>& inputs,
                        const std::vector<NamedShape>& outputs, absl::Span<const v1::Chunk> chunks);

// As above, of chunks that say their shapes, with a table for each stage, under its path:
//
//   stage features
//   device   rows  in       out
//   cpu:0      10  [10, 5]  [10, 2]
//   …
//   outside    30  [30, 5]  [30, 2]
//
// A number that each chunk makes of its rows is gathered into as many as there are chunks.
std::string FormatSplit(absl::Span<const v1::Chunk> chunks);

}  // namespace braid::cli
