#include "server/batching/ordered_answers.h"

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

class OrderedAnswersTest : public ::testing::Test {
 protected:
  void Bring(OrderedAnswers::Place place) {
    answers_.Bring(place, [this, place] { given_.push_back(place); });
  }

  OrderedAnswers answers_;
  std::vector<OrderedAnswers::Place> given_;
};

TEST_F(OrderedAnswersTest, AreGivenInTheOrderInWhichTheyWereExpected) {
  const auto first = answers_.Expect();
  const auto second = answers_.Expect();
  const auto third = answers_.Expect();
  Bring(third);
  Bring(second);
  EXPECT_THAT(given_, IsEmpty());
  Bring(first);
  EXPECT_THAT(given_, ElementsAre(first, second, third));
}

TEST_F(OrderedAnswersTest, OneThatIsForgottenKeepsNobodyWaiting) {
  const auto first = answers_.Expect();
  const auto second = answers_.Expect();
  Bring(second);
  answers_.Forget(first);
  EXPECT_THAT(given_, ElementsAre(second));
}

TEST_F(OrderedAnswersTest, AnAnswerMayBringAnother) {
  const auto first = answers_.Expect();
  const auto second = answers_.Expect();
  answers_.Bring(first, [&] {
    given_.push_back(first);
    Bring(second);
  });
  EXPECT_THAT(given_, ElementsAre(first, second));
}

TEST(OrderedAnswersThreadsTest, NoThreadOvertakesAnother) {
  for (unsigned round = 0; round < 50; ++round) {
    OrderedAnswers answers;
    std::vector<OrderedAnswers::Place> given;  // one thread gives at a time
    std::vector<OrderedAnswers::Place> places(40);
    for (auto& place : places) {
      place = answers.Expect();
    }
    const std::vector<OrderedAnswers::Place> expected = places;
    std::shuffle(places.begin(), places.end(), std::mt19937(round));
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < places.size(); i += 4) {
          answers.Bring(places[i], [&given, place = places[i]] { given.push_back(place); });
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(given, expected);
  }
}

}  // namespace
}  // namespace braid
