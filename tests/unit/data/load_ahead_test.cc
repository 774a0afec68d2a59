#include "server/data/load_ahead.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

using Ahead = LoadAhead<int>;

// Adds the numbers of its parts to `number`.
class SumTask final : public Ahead::Task {
 public:
  SumTask(int number, int parts, absl::Status error = absl::OkStatus())
      : sum_(number), parts_(parts), error_(std::move(error)) {}

  int parts() const override { return parts_; }
  absl::Status Run(int part) override {
    sum_ += part;
    return part == parts_ - 1 ? error_ : absl::OkStatus();
  }
  absl::StatusOr<int> Finish() override { return sum_.load(); }

 private:
  std::atomic<int> sum_;
  const int parts_;
  const absl::Status error_;
};

std::vector<int> Results(int threads, size_t max_ahead) {
  int made = 0;
  Ahead ahead("test", threads, max_ahead,
              [&made]() -> absl::StatusOr<std::unique_ptr<Ahead::Task>> {
                if (made == 20) {
                  return nullptr;
                }
                ++made;
                return std::make_unique<SumTask>(1000 * made, 1 + made % 4);
              });
  std::vector<int> results;
  while (true) {
    const std::optional<int> next = ahead.Next().value();
    if (!next.has_value()) {
      return results;
    }
    results.push_back(*next);
  }
}

TEST(LoadAhead, ReturnsResultsInOrderForAnyNumberOfThreads) {
  const std::vector<int> expected = Results(1, 1);
  ASSERT_EQ(expected.size(), 20u);
  EXPECT_EQ(expected.front(), 1001);
  for (const int threads : {2, 5}) {
    for (const size_t max_ahead : {1, 3, 50}) {
      EXPECT_EQ(Results(threads, max_ahead), expected);
    }
  }
}

TEST(LoadAhead, ReturnsTheErrorOfAPartAndContinues) {
  int made = 0;
  Ahead ahead("test", 3, 2, [&made]() -> absl::StatusOr<std::unique_ptr<Ahead::Task>> {
    ++made;
    return std::make_unique<SumTask>(
        made, 3, made == 1 ? absl::InvalidArgumentError("bad part") : absl::OkStatus());
  });
  EXPECT_THAT(ahead.Next(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bad part")));
  EXPECT_EQ(ahead.Next().value(), 2 + 0 + 1 + 2);
}

TEST(LoadAhead, RepeatsTheErrorOfMakingATask) {
  int made = 0;
  Ahead ahead("test", 2, 4, [&made]() -> absl::StatusOr<std::unique_ptr<Ahead::Task>> {
    if (++made == 2) {
      return absl::DataLossError("no more");
    }
    return std::make_unique<SumTask>(5, 1);
  });
  EXPECT_EQ(ahead.Next().value(), 5);
  EXPECT_THAT(ahead.Next(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no more")));
  EXPECT_THAT(ahead.Next(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no more")));
}

TEST(LoadAhead, ComputesNoMoreThanAllowedAhead) {
  std::atomic<int> made = 0;
  absl::Notification second;
  Ahead ahead("test", 4, 2, [&]() -> absl::StatusOr<std::unique_ptr<Ahead::Task>> {
    if (++made == 2) {
      second.Notify();
    }
    return std::make_unique<SumTask>(1, 1);
  });
  second.WaitForNotification();
  EXPECT_EQ(made, 2);
  EXPECT_EQ(ahead.Next().value(), 1);
}

}  // namespace
}  // namespace braid
