// A queue that the test fills before its only worker starts, and the batches that were run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/status_matchers.h"

namespace braid {

// The shapes of the batches that puppets have seen. Thread-safe.
class Seen {
 public:
  void Add(const at::Tensor& batch) {
    const absl::MutexLock lock(&mu_);
    rows_.push_back(batch.size(0));
    sums_.push_back(batch.sum().item<double>());
  }
  std::vector<int64_t> rows() const {
    const absl::MutexLock lock(&mu_);
    return rows_;
  }
  // Sum of the elements of each batch.
  std::vector<double> sums() const {
    const absl::MutexLock lock(&mu_);
    return sums_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<int64_t> rows_ ABSL_GUARDED_BY(mu_);
  std::vector<double> sums_ ABSL_GUARDED_BY(mu_);
};

// y = 2 x.
inline PuppetReplica::Function Doubling(Seen* seen) {
  return [seen](const PuppetReplica::Tensors& inputs) -> absl::StatusOr<PuppetReplica::Tensors> {
    seen->Add(inputs[0]);
    return PuppetReplica::Tensors{inputs[0] * 2};
  };
}

inline std::vector<float> Doubled(const HostTensor& input) {
  std::vector<float> values = ValuesOf<float>(input);
  for (float& value : values) {
    value *= 2;
  }
  return values;
}

// One worker, which is kept busy while the test fills the queue.
class FilledQueueTest : public ::testing::Test {
 protected:
  void Start(ModelConfig config, const PuppetReplica::Function& forward) {
    queue_ = MakeQueue(&fleet_, std::move(config), forward);
    block_.emplace(fleet_.worker(0));
  }
  PendingInference& Push(const HostTensor& input, absl::Time deadline = absl::InfiniteFuture()) {
    pending_.push_back(std::make_unique<PendingInference>());
    EXPECT_THAT(queue_->Push(MakeRequest(input, pending_.back().get(), deadline,
                                         queue_->config().batched())),
                IsOk());
    return *pending_.back();
  }
  void Open() { block_.reset(); }

  Seen seen_;
  WorkerFleet fleet_{1};
  std::shared_ptr<BatchQueue> queue_;
  std::vector<std::unique_ptr<PendingInference>> pending_;
  std::optional<WorkerBlock> block_;
};

}  // namespace braid
