#include "server/data/batch_loader.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/background_thread.h"
#include "server/base/status.h"

namespace braid {
namespace {

// More would not hide longer delays, but take memory for other things than rows.
constexpr size_t kMaxAhead = 64;

}  // namespace

int64_t BatchLoader::BatchesPerEpoch(int64_t positions, int64_t batch_size, bool drop_last) {
  return positions / batch_size + (!drop_last && positions % batch_size > 0 ? 1 : 0);
}

absl::StatusOr<std::unique_ptr<BatchLoader>> BatchLoader::Create(Options options) {
  const int64_t positions = options.order->size();
  if (positions == 0) {
    return absl::InvalidArgumentError("no rows (expected at least one)");
  }
  if (BatchesPerEpoch(positions, options.batch_size, options.drop_last) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_size: ", options.batch_size, " rows exceed the ", positions,
                     " rows of an epoch (expected at most as many, because drop_last is set)"));
  }
  return std::unique_ptr<BatchLoader>(new BatchLoader(std::move(options)));
}

BatchLoader::BatchLoader(Options options)
    : options_(std::move(options)),
      batches_per_epoch_(
          BatchesPerEpoch(options_.order->size(), options_.batch_size, options_.drop_last)),
      max_ahead_(std::clamp<size_t>(
          options_.max_bytes / std::max<size_t>(1, options_.store->row_bytes() *
                                                       static_cast<size_t>(options_.batch_size)),
          1, kMaxAhead)),
      next_(options_.first_batch),
      next_to_load_(options_.first_batch) {
  for (int t = 0; t < options_.threads; ++t) {
    threads_.emplace_back([this] { Run(); });
  }
}

BatchLoader::~BatchLoader() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

absl::StatusOr<std::optional<BatchLoader::Batch>> BatchLoader::Next() {
  const absl::Time start = absl::Now();
  const absl::MutexLock lock(&mu_);
  if (next_ == options_.end_batch) {
    return std::nullopt;
  }
  mu_.Await(absl::Condition(this, &BatchLoader::HasNext));
  absl::StatusOr<Batch> batch = std::move(loaded_.extract(next_).mapped());
  ++next_;
  if (!batch.ok()) {
    return std::move(batch).status();
  }
  batch->waited = absl::Now() - start;
  return *std::move(batch);
}

void BatchLoader::Run() {
  EnterBackground("loader");
  while (true) {
    int64_t number = 0;
    {
      const absl::MutexLock lock(&mu_, absl::Condition(this, &BatchLoader::MayLoad));
      if (stop_ || next_to_load_ == options_.end_batch) {
        return;
      }
      number = next_to_load_++;
    }
    absl::StatusOr<Batch> batch = Load(number);
    const absl::MutexLock lock(&mu_);
    loaded_.emplace(number, std::move(batch));
  }
}

absl::StatusOr<BatchLoader::Batch> BatchLoader::Load(int64_t number) const {
  Batch batch;
  batch.number = number;
  batch.epoch = number / batches_per_epoch_;
  batch.position = number % batches_per_epoch_ * options_.batch_size;
  std::vector<int64_t> rows(
      static_cast<size_t>(std::min(options_.batch_size, options_.order->size() - batch.position)));
  options_.order->Fill(batch.epoch, batch.position, absl::MakeSpan(rows));
  BRAID_ASSIGN_OR_RETURN(batch.tensors, options_.store->Gather(rows));
  return batch;
}

}  // namespace braid
