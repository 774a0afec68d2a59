#include "server/tracking/tracking.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Returns the lines of a CSV file without the times.
std::string StepsIn(const fs::path& csv) {
  std::string steps;
  std::ifstream in(csv);
  std::string line;
  for (std::getline(in, line); std::getline(in, line);) {
    const size_t time = line.find(',');
    steps += line.substr(0, time) + line.substr(line.find(',', time + 1)) + " ";
  }
  return steps;
}

class TrackingTest : public testing::Test {
 protected:
  void Start() {
    auto tracking = Tracking::Create(dir_.path() / "tracking", &clock_);
    ASSERT_THAT(tracking.status(), IsOk());
    tracking_ = *std::move(tracking);
  }
  // Writes all values and starts again.
  void Restart() {
    tracking_.reset();
    Start();
  }
  void SetUp() override { Start(); }

  const TempDir dir_;
  const fs::path folder_ = dir_.path() / "tracking" / "jobs" / "a";
  const RealClock clock_;
  std::unique_ptr<Tracking> tracking_;
};

TEST_F(TrackingTest, WritesThreeFilesForARun) {
  {
    const auto run = tracking_->Open(Tracking::JobFolder("a"));
    run->Add(1, {{"loss", 0.5}});
    run->Add(1, {{"lr", 0.1}});
  }
  Restart();
  EXPECT_EQ(StepsIn(folder_ / "metrics.csv"), "1,loss,0.5 1,lr,0.1 ");
  EXPECT_THAT(Contents(folder_ / "metrics.jsonl"), HasSubstr("\"loss\":0.5,\"lr\":0.1}\n"));
  EXPECT_EQ(Names(folder_).size(), 3u);
}

TEST_F(TrackingTest, FlushReturnsOnceAllFilesHaveTheValues) {
  const auto run = tracking_->Open(Tracking::JobFolder("a"));
  for (int64_t step = 1; step <= 100; ++step) {
    run->Add(step, {{"loss", 1}});
    run->Flush();
    const std::vector<std::string> names = Names(folder_);
    const auto events = std::ranges::find_if(
        names, [](const std::string& name) { return name.starts_with("events."); });
    ASSERT_NE(events, names.end());
    EXPECT_THAT(Contents(folder_ / "metrics.csv"), HasSubstr(absl::StrCat("\n", step, ",")));
    EXPECT_THAT(Contents(folder_ / "metrics.jsonl"), HasSubstr(absl::StrCat("\"step\":", step)));
    const std::vector<std::string> parts = absl::StrSplit(Contents(folder_ / *events), "loss");
    EXPECT_EQ(parts.size(), static_cast<size_t>(step) + 1);
  }
  tracking_->Remove(Tracking::JobFolder("a"));
  run->Flush();  // of nothing
}

TEST_F(TrackingTest, ARunWithoutValuesHasNoFolder) {
  tracking_->Open(Tracking::JobFolder("a"))->Restart(0);
  Restart();
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(TrackingTest, ARestartRemovesLaterSteps) {
  {
    const auto run = tracking_->Open(Tracking::JobFolder("a"));
    for (int64_t step = 1; step <= 4; ++step) {
      run->Add(step, {{"loss", 1}});
    }
  }
  Restart();
  {
    const auto run = tracking_->Open(Tracking::JobFolder("a"));
    run->Restart(2);
    run->Add(3, {{"loss", 7}});
    run->Restart(1);
    run->Add(2, {{"loss", 8}});
  }
  Restart();
  EXPECT_EQ(StepsIn(folder_ / "metrics.csv"), "1,loss,1.0 2,loss,8.0 ");
}

TEST_F(TrackingTest, TheStepOfARestartComesOnceAfterIt) {
  {
    const auto run = tracking_->Open(Tracking::JobFolder("a"));
    run->Add(1, {{"loss", 1}});
    run->Add(2, {{"loss", 2}, {"evaluation/loss", 3}});
  }
  Restart();
  {
    const auto run = tracking_->Open(Tracking::JobFolder("a"));
    run->Restart(2);
    run->Add(2, {{"loss", 2}});
  }
  tracking_.reset();
  std::string newest;
  for (const std::string& name : Names(folder_)) {
    if (name.starts_with("events.") && name > newest) {
      newest = name;
    }
  }
  const std::vector<std::string> parts =
      absl::StrSplit(Contents(folder_ / newest), "evaluation/loss");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(parts[0] + parts[1], "loss")).size(), 2u);
}

TEST_F(TrackingTest, ALateValueBelongsToTheNewestStep) {
  {
    const auto run = tracking_->Open(Tracking::JobFolder("a"));
    run->Add(2, {{"loss", 1}});
    run->Add(1, {{"evaluation/loss", 2}});
  }
  Restart();
  EXPECT_EQ(StepsIn(folder_ / "metrics.csv"), "2,loss,1.0 2,evaluation/loss,2.0 ");
}

TEST_F(TrackingTest, RemoveDeletesTheFolderAndEndsItsRun) {
  const auto run = tracking_->Open(Tracking::JobFolder("a"));
  run->Add(1, {{"loss", 1}});
  tracking_->Remove(Tracking::JobFolder("a"));
  EXPECT_FALSE(fs::exists(folder_));
  run->Add(2, {{"loss", 1}});
  {
    const auto next = tracking_->Open(Tracking::JobFolder("a"));
    next->Add(1, {{"loss", 5}});
  }
  tracking_.reset();
  EXPECT_EQ(StepsIn(folder_ / "metrics.csv"), "1,loss,5.0 ");
}

TEST_F(TrackingTest, AnErrorOfTheDiskCostsOnlyValues) {
  fs::create_directories(folder_.parent_path());
  Put(folder_, "a file instead of a folder");
  tracking_->Open(Tracking::JobFolder("a"))->Add(1, {{"loss", 1}});
  tracking_->Open(Tracking::JobFolder("b"))->Add(1, {{"loss", 1}});
  Restart();
  EXPECT_EQ(StepsIn(folder_.parent_path() / "b" / "metrics.csv"), "1,loss,1.0 ");
}

TEST_F(TrackingTest, ADirectoryBelongsToOneServer) {
  EXPECT_THAT(Tracking::Create(dir_.path() / "tracking", &clock_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another server")));
}

}  // namespace
}  // namespace braid
