// Reading a scan ahead of its consumer.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/data/data_source.h"

namespace braid {

// Reads a scan with a thread of its own, so that decoding and disk accesses overlap with what the
// caller does. Holds at most kBatches batches, of about 16 MiB each. Next() must be called by one
// thread at a time.
class ReadAhead final : public RowScan {
 public:
  static constexpr size_t kBatches = 2;

  explicit ReadAhead(std::unique_ptr<RowScan> scan);
  // Stops after the batch that is being read.
  ~ReadAhead() override;
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Returns the same error or end again after the first one.
  absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> Next() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Batch = absl::StatusOr<std::shared_ptr<arrow::RecordBatch>>;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || read_.size() < kBatches;
  }
  bool HasNext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !read_.empty(); }

  const std::unique_ptr<RowScan> scan_;  // used by the thread

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Batch> read_ ABSL_GUARDED_BY(mu_);

  // Last member: starts last.
  std::thread thread_;
};

}  // namespace braid
