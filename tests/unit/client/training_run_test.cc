#include "client/cli/training_run.h"

#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/trainer_fixture.h"

namespace braid::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using Fault = client::FakeTrainingService::Fault;

// Five rows: 0 to 4.
class TrainingRunTest : public client::TrainerFixture {
 public:
  TrainingRunTest() {
    path_ = ::testing::TempDir() + "training_run_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".npy";
    EXPECT_TRUE(WriteNpy(path_, client::MakeTensor<float>("", {5, 1}, {0, 1, 2, 3, 4})).ok());
    absl::StatusOr<Dataset> dataset = Dataset::Open({{"x", path_}}, {{"target", path_}});
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    dataset_ = std::make_unique<Dataset>(*std::move(dataset));
  }
  ~TrainingRunTest() override { std::remove(path_.c_str()); }

 protected:
  // Runs until `stop` has been asked so often.
  absl::Status Run(const TrainingPlan& plan, int64_t made, client::Trainer& trainer,
                   int stop_after = 1000) {
    ProgressReporter progress(out_, ProgressReporter::Style::kJson, plan.epochs,
                              StepsPerEpoch(plan, dataset_->rows()), 80, absl::Now());
    progress.StartAfter(made);
    return RunSteps(plan, *dataset_, made, trainer, progress, [&] { return stop_after-- == 0; });
  }
  std::vector<nlohmann::json> Events() const {
    std::vector<nlohmann::json> events;
    for (absl::string_view line : absl::StrSplit(out_.str(), '\n', absl::SkipEmpty())) {
      events.push_back(nlohmann::json::parse(line));
    }
    return events;
  }

  std::string path_;
  std::unique_ptr<Dataset> dataset_;
  std::ostringstream out_;
};

TEST_F(TrainingRunTest, StepsOfAnEpoch) {
  EXPECT_EQ(StepsPerEpoch({.batch_size = 2}, 5), 3);
  EXPECT_EQ(StepsPerEpoch({.batch_size = 2, .drop_last = true}, 5), 2);
  EXPECT_EQ(StepsPerEpoch({.batch_size = 9, .drop_last = true}, 5), 0);
}

TEST_F(TrainingRunTest, GoesThroughTheRowsInOrder) {
  client::Trainer trainer = Create();
  ASSERT_TRUE(Run({.epochs = 2, .batch_size = 2, .shuffle = false}, 0, trainer).ok());
  EXPECT_THAT(service_.history(), ElementsAre("step 1 of 0", "step 2 of 2", "step 3 of 4",
                                              "step 4 of 0", "step 5 of 2", "step 6 of 4"));
  const std::vector<v1::StepRequest> steps = service_.steps();
  EXPECT_THAT(steps[0].inputs(0).shape(), ElementsAre(2, 1));
  EXPECT_THAT(steps[2].targets(0).shape(), ElementsAre(1, 1));
  const std::vector<nlohmann::json> events = Events();
  ASSERT_THAT(events, SizeIs(8));
  EXPECT_EQ(events[1]["step"], 2);
  EXPECT_EQ(events[1]["loss"], 2);
  EXPECT_EQ(events[3]["event"], "epoch");
  // Losses 1, 2 of two rows each and 3 of one.
  EXPECT_EQ(events[3]["mean_loss"], 1.8);
}

TEST_F(TrainingRunTest, GoesOnWhereAnEarlierRunEnded) {
  const TrainingPlan plan = {.epochs = 3, .batch_size = 1, .seed = 5};
  client::Trainer trainer = Create();
  ASSERT_TRUE(Run(plan, 0, trainer).ok());
  const std::vector<std::string> whole = service_.history();
  ASSERT_THAT(whole, SizeIs(15));
  service_.Edit([](client::FakeTrainer& fake) { fake.GoBackTo(0); });
  ASSERT_TRUE(trainer.Refresh().ok());
  ASSERT_TRUE(Run(plan, 0, trainer, 7).ok());
  EXPECT_THAT(service_.history(), SizeIs(7));
  ASSERT_TRUE(Run(plan, 7, trainer).ok());
  EXPECT_EQ(service_.history(), whole);
  EXPECT_EQ(Events().back()["epoch"], 3);
}

TEST_F(TrainingRunTest, CountsBatchesThatWereLeftOut) {
  v1::Trainer info;
  info.set_step(7);
  info.set_skipped(3);
  // A publication, too.
  info.set_applied_sequence(11);
  EXPECT_EQ(BatchesTaken(info), 10);
}

TEST_F(TrainingRunTest, ReportsHowTheFirstBatchIsSplit) {
  client::Trainer trainer = Create();
  ASSERT_TRUE(Run({.batch_size = 2, .report_split = true}, 0, trainer).ok());
  const nlohmann::json split = Events()[0];
  EXPECT_EQ(split["event"], "split");
  ASSERT_THAT(split["chunks"], SizeIs(1));
  EXPECT_EQ(split["chunks"][0]["rows"], 2);
  EXPECT_THAT(split["chunks"][0]["outputs"], ElementsAre("[2, 3]"));
  const std::vector<v1::StepRequest> steps = service_.steps();
  EXPECT_TRUE(steps[0].report_split());
  EXPECT_FALSE(steps[1].report_split());
}

TEST_F(TrainingRunTest, BrokenConnectionsAndLostReplies) {
  client::Trainer trainer = Create(4);
  service_.Inject({Fault::kNone, Fault::kWithheld, Fault::kLostReply, Fault::kNone, Fault::kCrash});
  ASSERT_TRUE(Run({.epochs = 2, .batch_size = 1, .shuffle = false, .depth = 3}, 0, trainer).ok());
  EXPECT_THAT(service_.history(), SizeIs(10));
  const std::vector<nlohmann::json> events = Events();
  EXPECT_TRUE(events[1]["loss"].is_null());
  EXPECT_EQ(events[2]["loss"], 3);
  // 1, 3, 4 and 5, of a row each.
  EXPECT_EQ(events[5]["mean_loss"], 3.25);
}

TEST_F(TrainingRunTest, AFailureIsReturned) {
  client::Trainer trainer = Create();
  service_.Refuse({grpc::StatusCode::INVALID_ARGUMENT, "inputs[0]: is not float64"});
  const absl::Status status = Run({.epochs = 1, .batch_size = 2}, 0, trainer);
  EXPECT_EQ(status.message(), "inputs[0]: is not float64");
  service_.Refuse(grpc::Status::OK);
  EXPECT_TRUE(trainer.Delete().ok());
}

TEST_F(TrainingRunTest, OutputThatCannotBeWrittenEndsIt) {
  client::Trainer trainer = Create();
  out_.setstate(std::ios::badbit);
  EXPECT_TRUE(absl::IsDataLoss(Run({.epochs = 100, .batch_size = 1}, 0, trainer)));
}

}  // namespace
}  // namespace braid::cli
