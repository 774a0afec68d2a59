// Runs of the flat gradients, each reduced as soon as the backward pass has all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/parallel/flat_parameters.h"
#include "server/parallel/flat_slice.h"

namespace braid {

// `slice` of flat buffer `buffer`, which holds the gradients of `parameters`.
struct GradientBucket {
  size_t buffer = 0;
  Slice slice;
  std::vector<size_t> parameters;
};

// What a bucket holds at least, in bytes, but for the last of a buffer. The first is small, so that
// the first reduction begins early; the sizes are those of PyTorch's DistributedDataParallel.
struct BucketSizes {
  int64_t first = int64_t{1} << 20;
  int64_t others = int64_t{25} << 20;
};

// Every parameter in one bucket. In the order in which a backward pass is likely to finish them:
// the parameters of the last layers first.
std::vector<GradientBucket> MakeBuckets(const FlatParameters& flat, const BucketSizes& sizes = {});

}  // namespace braid
