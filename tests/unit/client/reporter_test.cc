#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/cli/progress.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Style = ProgressReporter::Style;

class ReporterTest : public ::testing::Test {
 protected:
  ProgressReporter Make(Style style, int64_t epochs, int64_t steps) {
    return {out_, style, epochs, steps, /*width=*/80, now_};
  }
  // A step of 10 rows that takes this long.
  void Step(ProgressReporter& reporter, double loss, absl::Duration took) {
    now_ += took;
    reporter.Step(loss, 10, now_);
  }
  std::vector<std::string> Lines() const {
    return absl::StrSplit(out_.str(), '\n', absl::SkipEmpty());
  }

  std::ostringstream out_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(ReporterTest, PipeGetsALineASecondAndOneAnEpoch) {
  ProgressReporter reporter = Make(Style::kLines, 2, 3);
  for (int i = 0; i < 6; ++i) Step(reporter, 1, absl::Milliseconds(500));
  EXPECT_THAT(Lines(), ElementsAre("epoch 1/2  step 2/3  loss 1.0000  20 samples/s",
                                   "epoch 1/2  3 steps  mean loss 1.0000  20 samples/s  1.5 s",
                                   "epoch 2/2  step 2/3  loss 1.0000  20 samples/s",
                                   "epoch 2/2  3 steps  mean loss 1.0000  20 samples/s  1.5 s"));
  EXPECT_EQ(reporter.total_steps(), 6);
  EXPECT_EQ(reporter.total_samples(), 60);
}

TEST_F(ReporterTest, TerminalRedrawsInPlaceTenTimesASecond) {
  ProgressReporter reporter = Make(Style::kBar, 1, 100);
  for (int i = 0; i < 30; ++i) Step(reporter, 1, absl::Milliseconds(10));
  const std::vector<std::string> draws = absl::StrSplit(out_.str(), '\r', absl::SkipEmpty());
  // The first step is shown at once, then the 11th and the 21st.
  ASSERT_EQ(draws.size(), 3);
  EXPECT_THAT(draws[2], HasSubstr(" 21/100"));
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("\n")));
}

TEST_F(ReporterTest, EpochsLineReplacesTheBar) {
  ProgressReporter reporter = Make(Style::kBar, 1, 1);
  Step(reporter, 1, absl::Seconds(1));
  const std::string text = out_.str();
  EXPECT_EQ(text.substr(text.rfind('\r')),
            "\r\x1b[Kepoch 1/1  1 steps  mean loss 1.0000  10 samples/s  1.0 s\n");
}

TEST_F(ReporterTest, ClearRemovesTheBarOnce) {
  ProgressReporter reporter = Make(Style::kBar, 1, 9);
  reporter.Clear();
  EXPECT_EQ(out_.str(), "");
  Step(reporter, 1, absl::Seconds(1));
  out_.str("");
  reporter.Clear();
  reporter.Clear();
  EXPECT_EQ(out_.str(), "\r\x1b[K");
}

TEST_F(ReporterTest, JsonHasEveryStepWithItsOwnLoss) {
  ProgressReporter reporter = Make(Style::kJson, 1, 2);
  Step(reporter, 4, absl::Milliseconds(1));
  Step(reporter, 2, absl::Milliseconds(1));
  reporter.Message("not shown", {{"event", "published"}, {"version", 2}});
  std::vector<nlohmann::json> events;
  for (const std::string& line : Lines()) events.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(events.size(), 4);
  EXPECT_EQ(events[0]["event"], "step");
  EXPECT_EQ(events[0]["step"], 1);
  EXPECT_EQ(events[1]["loss"], 2);
  EXPECT_EQ(events[2]["event"], "epoch");
  EXPECT_EQ(events[2]["mean_loss"], 3);
  EXPECT_EQ(events[3]["version"], 2);
}

TEST_F(ReporterTest, GoesOnInTheMiddleOfAnEpoch) {
  ProgressReporter reporter = Make(Style::kLines, 3, 4);
  reporter.StartAfter(6);
  Step(reporter, 1, absl::Seconds(1));
  Step(reporter, 1, absl::Seconds(1));
  Step(reporter, 1, absl::Seconds(1));
  EXPECT_THAT(Lines(), ElementsAre("epoch 2/3  step 3/4  loss 1.0000  10 samples/s",
                                   "epoch 2/3  step 4/4  loss 1.0000  10 samples/s",
                                   "epoch 2/3  4 steps  mean loss 1.0000  10 samples/s  2.0 s",
                                   "epoch 3/3  step 1/4  loss 1.0000  10 samples/s"));
  EXPECT_EQ(reporter.total_steps(), 3);
}

TEST_F(ReporterTest, LossesThatAreNotKnownAreLeftOut) {
  ProgressReporter reporter = Make(Style::kJson, 1, 3);
  reporter.Step(2, 10, now_ + absl::Seconds(1));
  reporter.Step(std::nullopt, 10, now_ + absl::Seconds(2));
  reporter.Step(4, 30, now_ + absl::Seconds(3));
  EXPECT_EQ(reporter.mean_loss(), 3.5);
  EXPECT_EQ(reporter.total_samples(), 50);
  EXPECT_TRUE(nlohmann::json::parse(Lines()[1])["loss"].is_null());
}

TEST_F(ReporterTest, NoticesThatNothingCanBeWritten) {
  ProgressReporter reporter = Make(Style::kLines, 1, 1);
  EXPECT_TRUE(reporter.ok());
  out_.setstate(std::ios::badbit);
  EXPECT_FALSE(reporter.ok());
}

TEST_F(ReporterTest, MeanLossWeighsRows) {
  ProgressReporter reporter = Make(Style::kLines, 1, 2);
  reporter.Step(1, 30, now_ + absl::Seconds(1));
  reporter.Step(5, 10, now_ + absl::Seconds(2));
  EXPECT_EQ(reporter.mean_loss(), 2);
}

TEST_F(ReporterTest, SmoothedLossBeginsAtTheFirstLossAndLagsBehind) {
  ProgressReporter reporter = Make(Style::kLines, 1, 9);
  Step(reporter, 8, absl::Seconds(1));
  Step(reporter, 0, absl::Seconds(1));
  EXPECT_THAT(Lines()[0], HasSubstr("loss 8.0000"));
  // 8 and 0, weighted 0.09 and 0.1.
  EXPECT_THAT(Lines()[1], HasSubstr("loss 3.7895"));
}

}  // namespace
}  // namespace braid::cli
