#include "server/batching/ordered_replies.h"

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class OrderedRepliesTest : public ::testing::Test {
 protected:
  void Provide(OrderedReplies::Slot slot) {
    replies_.Provide(slot, [this, slot] { delivered_.push_back(slot); });
  }

  OrderedReplies replies_;
  std::vector<OrderedReplies::Slot> delivered_;
};

TEST_F(OrderedRepliesTest, DeliversInReservationOrder) {
  const auto first = replies_.Reserve();
  const auto second = replies_.Reserve();
  const auto third = replies_.Reserve();
  Provide(third);
  Provide(second);
  EXPECT_THAT(delivered_, IsEmpty());
  Provide(first);
  EXPECT_THAT(delivered_, ElementsAre(first, second, third));
}

TEST_F(OrderedRepliesTest, ASkippedSlotDoesNotBlockLaterReplies) {
  const auto first = replies_.Reserve();
  const auto second = replies_.Reserve();
  Provide(second);
  replies_.Skip(first);
  EXPECT_THAT(delivered_, ElementsAre(second));
}

TEST_F(OrderedRepliesTest, ADeliveryMayProvideTheNextReply) {
  const auto first = replies_.Reserve();
  const auto second = replies_.Reserve();
  replies_.Provide(first, [&] {
    delivered_.push_back(first);
    Provide(second);
  });
  EXPECT_THAT(delivered_, ElementsAre(first, second));
}

TEST(OrderedRepliesThreadsTest, DeliversInOrderAcrossThreads) {
  for (unsigned round = 0; round < 50; ++round) {
    OrderedReplies replies;
    std::vector<OrderedReplies::Slot> delivered;  // only one thread delivers at a time
    std::vector<OrderedReplies::Slot> slots(40);
    for (auto& slot : slots) {
      slot = replies.Reserve();
    }
    const std::vector<OrderedReplies::Slot> expected = slots;
    std::shuffle(slots.begin(), slots.end(), std::mt19937(round));
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < slots.size(); i += 4) {
          replies.Provide(slots[i], [&delivered, slot = slots[i]] { delivered.push_back(slot); });
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(delivered, expected);
  }
}

}  // namespace
}  // namespace braid
