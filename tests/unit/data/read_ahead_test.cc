#include "server/data/read_ahead.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "arrow/api.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/data/tables.h"

namespace braid {
namespace {

// Gives batches of one row, then `end`.
class CountingScan final : public RowScan {
 public:
  struct Reads {
    absl::Mutex mu;
    int64_t count ABSL_GUARDED_BY(mu) = 0;

    void Await(int64_t wanted) {
      const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return count >= wanted; };
      const absl::MutexLock lock(&mu, absl::Condition(&reached));
      EXPECT_EQ(count, wanted);
    }
  };

  CountingScan(int64_t rows, absl::Status end, Reads* reads)
      : rows_(rows), end_(std::move(end)), reads_(reads) {}

  absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> Next() override {
    const absl::MutexLock lock(&reads_->mu);
    if (reads_->count == rows_) {
      return end_.ok() ? absl::StatusOr<std::shared_ptr<arrow::RecordBatch>>(nullptr) : end_;
    }
    const int64_t id = reads_->count++;
    return MakeIds(id, id + 1);
  }

 private:
  const int64_t rows_;
  const absl::Status end_;
  Reads* const reads_;
};

TEST(ReadAheadTest, KeepsTheOrderAndRepeatsTheEnd) {
  for (const absl::Status& end : {absl::OkStatus(), absl::DataLossError("damaged")}) {
    CountingScan::Reads reads;
    ReadAhead scan(std::make_unique<CountingScan>(10, end, &reads));
    for (int64_t id = 0; id < 10; ++id) {
      BRAID_ASSERT_OK_AND_ASSIGN(const auto batch, scan.Next());
      EXPECT_EQ(Int64s(*batch, "id"), Count(id, id + 1));
    }
    for (int again = 0; again < 2; ++again) {
      const auto last = scan.Next();
      EXPECT_EQ(last.status(), end);
      EXPECT_TRUE(!last.ok() || *last == nullptr);
    }
  }
}

TEST(ReadAheadTest, LimitsTheBatchesAhead) {
  CountingScan::Reads reads;
  {
    ReadAhead scan(std::make_unique<CountingScan>(100, absl::OkStatus(), &reads));
    reads.Await(ReadAhead::kBatches);
    EXPECT_THAT(scan.Next(), IsOk());
    reads.Await(ReadAhead::kBatches + 1);
  }
  const absl::MutexLock lock(&reads.mu);
  EXPECT_EQ(reads.count, static_cast<int64_t>(ReadAhead::kBatches) + 1);
}

}  // namespace
}  // namespace braid
