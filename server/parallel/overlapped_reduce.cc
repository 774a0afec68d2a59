#include "server/parallel/overlapped_reduce.h"

#include <optional>
#include <utility>

namespace braid {

std::vector<GradientBucket> MakeBuckets(const FlatParameters& flat, const BucketSizes& sizes) {
  std::vector<GradientBucket> buckets;
  // Index of the bucket being filled, by buffer.
  std::vector<std::optional<size_t>> open(flat.gradients().size());
  for (size_t p = flat.slots().size(); p-- > 0;) {
    if (flat.frozen(p)) {
      continue;
    }
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
    const int64_t min_bytes = *filled == 0 ? sizes.first : sizes.others;
    const auto element = static_cast<int64_t>(flat.gradients()[slot.buffer].element_size());
    if (bucket.slice.size() * element >= min_bytes) {
      filled.reset();
    }
  }
  return buckets;
}

OverlappedReduce::OverlappedReduce(Communicator& communicator, std::vector<FlatParameters*> flat,
                                   bool all, const BucketSizes& sizes)
    : communicator_(communicator),
      flat_(std::move(flat)),
      all_(all),
      buckets_(MakeBuckets(*flat_.front(), sizes)),
      bucket_of_(flat_.front()->slots().size()),
      waiting_(buckets_.size(), flat_.size()) {
  std::vector<size_t> missing(buckets_.size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const size_t p : buckets_[b].parameters) {
      bucket_of_[p] = b;
    }
    missing[b] = buckets_[b].parameters.size();
  }
  missing_.assign(flat_.size(), missing);
}

void OverlappedReduce::Begin(size_t rank) { flat_[rank]->Clear(); }

void OverlappedReduce::Add(size_t rank, size_t parameter, const at::Tensor& gradient) {
  flat_[rank]->Put(parameter, gradient);
  const size_t bucket = bucket_of_[parameter];
  if (--missing_[rank][bucket] == 0) {
    const absl::MutexLock lock(&mu_);
    Finish(rank, bucket);
  }
}

absl::Status OverlappedReduce::End(size_t rank) {
  const absl::MutexLock lock(&mu_);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (std::exchange(missing_[rank][b], 0) > 0) {
      Finish(rank, b);
    }
  }
  return status_;
}

absl::Status OverlappedReduce::Wait(size_t rank) {
  const absl::Status ended = communicator_.EndSums(rank);
  const absl::MutexLock lock(&mu_);
  status_.Update(ended);
  return status_;
}

void OverlappedReduce::Finish(size_t rank, size_t bucket) {
  status_.Update(communicator_.MarkReady(rank, bucket));
  --waiting_[bucket];
  while (next_ < buckets_.size() && waiting_[next_] == 0) {
    if (status_.ok()) {
      status_.Update(BeginSum(next_));
    }
    ++next_;
  }
}

absl::Status OverlappedReduce::BeginSum(size_t bucket) {
  const auto& [buffer, slice, parameters] = buckets_[bucket];
  std::vector<at::Tensor> tensors;
  tensors.reserve(flat_.size());
  for (const FlatParameters* flat : flat_) {
    tensors.push_back(flat->gradients()[buffer].narrow(0, slice.begin, slice.size()));
  }
  return communicator_.BeginSum(bucket, tensors, all_);
}

}  // namespace braid
