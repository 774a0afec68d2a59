#include "server/parallel/gradient_buckets.h"

#include <optional>

namespace braid {

std::vector<GradientBucket> MakeBuckets(const FlatParameters& flat, const BucketSizes& sizes) {
  std::vector<GradientBucket> buckets;
  // By buffer: the bucket that is being filled.
  std::vector<std::optional<size_t>> open(flat.gradients().size());
  for (size_t p = flat.slots().size(); p-- > 0;) {
    const FlatSlot& slot = flat.slots()[p];
    std::optional<size_t>& filled = open[slot.buffer];
    if (!filled) {
      filled = buckets.size();
      const int64_t end = slot.offset + slot.padded;
      buckets.push_back({slot.buffer, {end, end}, {}});
    }
    GradientBucket& bucket = buckets[*filled];
    bucket.slice.begin = slot.offset;
    bucket.parameters.push_back(p);
    const int64_t least = *filled == 0 ? sizes.first : sizes.others;
    const auto element = static_cast<int64_t>(flat.gradients()[slot.buffer].element_size());
    if (bucket.slice.size() * element >= least) {
      filled.reset();
    }
  }
  return buckets;
}

}  // namespace braid
