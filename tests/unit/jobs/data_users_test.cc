#include "server/jobs/data_users.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/jobs/job_state.h"
#include "tests/fakes/manual_clock.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Parses "<kind> <data> [<evaluation data>]", separated by '|'.
absl::StatusOr<JobSpec> ReadSpec(const std::string& /*id*/, const std::string& text) {
  const size_t first = text.find('|');
  const size_t second = text.find('|', first + 1);
  const std::string data = text.substr(first + 1, second - first - 1);
  if (text.starts_with("infer")) {
    InferenceJobSpec spec;
    spec.data.path = data;
    return spec;
  }
  if (!text.starts_with("train")) {
    return absl::DataLossError("spec");
  }
  TrainingJobSpec spec;
  spec.data.path = data;
  if (second != text.npos) {
    spec.evaluation = JobEvaluation{.path = text.substr(second + 1), .metrics = {}};
  }
  return spec;
}

class DataUsersTest : public ::testing::Test {
 protected:
  DataUsersTest() {
    std::filesystem::create_directories(Root() / "sets/mine");
    std::filesystem::create_directories(Root() / "sets/mine2");
    dir_.Write("sets/mine/a.npy", "");
    auto store = JobStore::Open(dir_.path() / "jobs.sqlite", &clock_);
    EXPECT_THAT(store, IsOk());
    store_ = *std::move(store);
  }

  std::filesystem::path Root() const { return std::filesystem::canonical(dir_.path()); }
  void Add(const std::string& id, const std::string& spec) {
    NewJob job;
    job.id = id;
    job.spec = spec;
    ASSERT_THAT(store_->Add(job), IsOk());
  }
  std::vector<std::string> Users(const std::string& path) const {
    auto users = JobsReading(Root() / path, *store_, ReadSpec, {Root()});
    EXPECT_THAT(users, IsOk());
    return users.value_or(std::vector<std::string>());
  }

  const TempDir dir_;
  ManualClock clock_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(DataUsersTest, FindsJobsOfTheDatasetItsFilesAndItsFolder) {
  Add("dataset", "infer|sets/mine");
  Add("file", "train|sets/mine/a.npy");
  Add("folder", "infer|sets");
  Add("evaluation", "train|sets/mine2|" + (Root() / "sets/mine").string());
  Add("other", "train|sets/mine2");
  Add("damaged", "?|sets/mine");
  Add("gone", "infer|sets/none");
  EXPECT_THAT(Users("sets/mine"), ElementsAre("dataset", "file", "folder", "evaluation"));
}

TEST_F(DataUsersTest, IgnoresJobsThatHaveEnded) {
  Add("job", "infer|sets/mine");
  JobMove move;
  move.to = JobState::kCancelled;
  ASSERT_THAT(store_->Move("job", move), IsOk());
  EXPECT_THAT(Users("sets/mine"), IsEmpty());
}

}  // namespace
}  // namespace braid
