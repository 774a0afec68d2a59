#include "server/jobs/training_job.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/jobs/fake_context.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Batches whose first value is the number of their first row.
class FakeBatches final : public BatchSource {
 public:
  FakeBatches(int64_t rows, int64_t batch_size, bool endless, bool drop_last = false)
      : rows_(rows), batch_size_(batch_size), endless_(endless), drop_last_(drop_last) {}

  absl::StatusOr<int64_t> Rows(JobContext*, std::string* identity) override {
    if (!error.ok()) {
      return error;
    }
    if (!identity->empty() && *identity != name) {
      return absl::FailedPreconditionError(absl::StrCat("expected data ", *identity));
    }
    *identity = name;
    return rows_;
  }
  absl::StatusOr<std::unique_ptr<BatchStream>> Open(int64_t first) override {
    return std::make_unique<Stream>(*this, first);
  }
  absl::Status CheckUnchanged() override { return changed; }
  int64_t DatasetRow(int64_t batch, int64_t row) const override { return 1000 * batch + row; }

  absl::Status error;            // of Rows()
  mutable absl::Status changed;  // of CheckUnchanged()
  int64_t nan_batch = -1;
  int64_t gone_batch = -1;  // whose files are replaced before they are read
  int64_t stop_batch = -1;  // at which reading ends with CANCELLED, after on_stop_batch()
  std::function<void()> on_stop_batch;
  std::string name = "data";

 private:
  class Stream final : public BatchStream {
   public:
    Stream(const FakeBatches& source, int64_t next) : source_(source), next_(next) {}
    absl::StatusOr<std::optional<TrainingBatch>> Next() override {
      const int64_t full = source_.rows_ / source_.batch_size_;
      const int64_t all = source_.drop_last_
                              ? full
                              : (source_.rows_ + source_.batch_size_ - 1) / source_.batch_size_;
      if (!source_.endless_ && next_ == all) {
        return std::nullopt;
      }
      if (next_ == source_.stop_batch && source_.on_stop_batch != nullptr) {
        source_.on_stop_batch();
        return absl::CancelledError("stopped while rows were decoded");
      }
      if (next_ == source_.gone_batch) {
        source_.changed = absl::FailedPreconditionError("data has changed");
        return absl::NotFoundError("file does not exist");
      }
      const int64_t in_epoch = next_ % all;
      TrainingBatch batch;
      batch.rows = in_epoch < full ? source_.batch_size_ : source_.rows_ % source_.batch_size_;
      const double value = next_ == source_.nan_batch ? std::nan("") : static_cast<double>(next_);
      batch.inputs = {MakeRows("x", batch.rows, value)};
      batch.waited = absl::Milliseconds(500);
      ++next_;
      return batch;
    }

   private:
    const FakeBatches& source_;
    int64_t next_;
  };

  const int64_t rows_;
  const int64_t batch_size_;
  const bool endless_;
  const bool drop_last_;
};

// What is on disk: checkpoints and published versions.
struct FakeDisk {
  std::optional<std::vector<double>> checkpoint;
  std::optional<std::vector<double>> best;
  std::vector<std::vector<double>> versions;
};

// Trainer whose weights are the list of the batches that it has seen. Its evaluation loss is taken
// from a table by the number of steps. Steps end at once.
class FakeTrainer final : public JobTrainer {
 public:
  explicit FakeTrainer(FakeDisk* disk) : disk_(disk) {}

  absl::StatusOr<Position> Open(const std::string& best, int64_t /*total_steps*/,
                                std::function<void()> before_checkpoint) override {
    kept = best;
    before_checkpoint_ = std::move(before_checkpoint);
    weights_ = disk_->checkpoint.value_or(std::vector<double>());
    Position position;
    position.applied = position.durable = Size(weights_);
    if (!weights_.empty()) {
      position.loss = Loss();
    }
    return position;
  }
  void Close() override { before_checkpoint_ = nullptr; }
  bool open() const { return before_checkpoint_ != nullptr; }
  void Step(int64_t sequence, TrainingBatch batch, OperationDone done) override {
    failed_ = failed_ || sequence == fail_at;
    if (failed_) {
      done(absl::FailedPreconditionError(failure));
      return;
    }
    EXPECT_EQ(sequence, Size(weights_) + 1);
    weights_.push_back(ValuesOf<float>(batch.inputs.front()).front());
    const bool saves = checkpoint_every > 0 && sequence % checkpoint_every == 0;
    OperationResult result;
    result.applied_sequence = sequence;
    result.durable_sequence = saves ? sequence : disk_->checkpoint ? Size(*disk_->checkpoint) : 0;
    result.skipped = sequence == skip_at;
    result.loss = Loss();
    result.lr = 0.1;
    done(std::move(result));
    if (saves) {
      before_checkpoint_();
      disk_->checkpoint = weights_;
    }
  }
  absl::StatusOr<EvaluationResult> Evaluate(BatchStream* batches) override {
    EvaluationResult result;
    while (true) {
      BRAID_ASSIGN_OR_RETURN(const std::optional<TrainingBatch> batch, batches->Next());
      if (!batch.has_value()) {
        break;
      }
      result.rows += batch->rows;
    }
    const auto found = losses.find(Size(weights_));
    result.loss = found == losses.end() ? 1.0 : found->second;
    result.metrics["accuracy"] = 1 - *result.loss;
    evaluated.push_back(Size(weights_));
    return result;
  }
  absl::Status SaveCheckpoint() override {
    if (save_error.ok()) {
      disk_->checkpoint = weights_;
    }
    return save_error;
  }
  absl::StatusOr<std::string> KeepBest() override {
    disk_->best = weights_;
    return absl::StrCat("checkpoint-", Size(weights_));
  }
  absl::Status RestoreBest(const std::string& checkpoint) override {
    EXPECT_EQ(checkpoint, absl::StrCat("checkpoint-", Size(*disk_->best)));
    weights_ = *disk_->best;
    disk_->checkpoint = weights_;
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Publish(int64_t step) override {
    EXPECT_EQ(step, Size(weights_));
    const auto found = std::find(disk_->versions.begin(), disk_->versions.end(), weights_);
    if (found != disk_->versions.end()) {
      return found - disk_->versions.begin() + 2;
    }
    disk_->versions.push_back(weights_);
    return static_cast<int64_t>(disk_->versions.size()) + 1;
  }
  void Release() override { released = true; }

  std::string kept;  // argument of Open()
  int64_t checkpoint_every = 0;
  int64_t fail_at = -1;
  std::string failure = "row 1 is not finite";
  int64_t skip_at = -1;
  absl::Status save_error;
  std::map<int64_t, double> losses;
  std::vector<int64_t> evaluated;
  bool released = false;

 private:
  static int64_t Size(const std::vector<double>& list) { return static_cast<int64_t>(list.size()); }
  double Loss() const { return 1.0 / static_cast<double>(weights_.size()); }

  FakeDisk* const disk_;
  std::function<void()> before_checkpoint_;
  std::vector<double> weights_;
  bool failed_ = false;
};

class TrainingJobTest : public ::testing::Test {
 protected:
  TrainingJobTest() {
    plan_.epochs = 2;
    plan_.batch_size = 4;
  }
  // Runs a new job, as after a start of the server.
  absl::StatusOr<JobResult> RunJob() {
    auto trainer = std::make_unique<FakeTrainer>(&disk_);
    trainer->checkpoint_every = checkpoint_every_;
    trainer->losses = losses_;
    if (edit_trainer_) {
      edit_trainer_(trainer.get());
    }
    trainer_ = trainer.get();
    JobRecord record;
    record.progress = context_.saved;
    record.memory = context_.memory;
    auto data = std::make_unique<FakeBatches>(rows_, plan_.batch_size, true, plan_.drop_last);
    data->error = data_error_;
    data->changed = data_changed_;
    data->nan_batch = nan_batch_;
    data->gone_batch = gone_batch_;
    data->stop_batch = stop_batch_;
    data->on_stop_batch = on_stop_batch_;
    data->name = training_data_;
    auto evaluation = evaluates_ ? std::make_unique<FakeBatches>(7, 4, false) : nullptr;
    if (evaluates_) {
      evaluation->error = evaluation_error_;
      evaluation->name = evaluation_data_;
    }
    job_ = std::make_unique<TrainingJob>(plan_, std::move(trainer), std::move(data),
                                         std::move(evaluation), record);
    return job_->Run(&context_);
  }

  TrainingPlan plan_;
  int64_t rows_ = 10;  // 3 batches
  bool evaluates_ = false;
  absl::Status data_error_;
  absl::Status data_changed_;
  int64_t nan_batch_ = -1;
  int64_t gone_batch_ = -1;
  int64_t stop_batch_ = -1;
  std::function<void()> on_stop_batch_;
  absl::Status evaluation_error_;
  std::string training_data_ = "a";
  std::string evaluation_data_ = "b";
  int64_t checkpoint_every_ = 0;
  std::map<int64_t, double> losses_;
  std::function<void(FakeTrainer*)> edit_trainer_;
  FakeDisk disk_;
  FakeContext context_;
  std::unique_ptr<TrainingJob> job_;
  FakeTrainer* trainer_ = nullptr;  // of job_
};

TEST_F(TrainingJobTest, TrainsAllEpochsAndPublishesTheLastWeights) {
  plan_.publish = JobPublish::kLast;
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  ASSERT_EQ(disk_.versions.size(), 1);
  EXPECT_THAT(disk_.versions[0], ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(result.version, 2);
  EXPECT_EQ(result.step, 6);
  EXPECT_THAT(result.metrics, ElementsAre(Pair("loss", 1.0 / 6)));
  EXPECT_EQ(context_.metrics["loss"].size(), 6);
  EXPECT_EQ(context_.metrics["loss"][3], 1.0 / 3);
  EXPECT_EQ(context_.metrics["lr"][6], 0.1);
}

TEST_F(TrainingJobTest, ProgressCountsRowsOverEpochs) {
  ASSERT_THAT(RunJob(), IsOk());
  const JobProgress& progress = context_.progress;
  EXPECT_EQ(progress.rows, 20);
  EXPECT_EQ(progress.total_rows, 20);
  EXPECT_EQ(progress.step, 6);
  EXPECT_EQ(progress.epoch, 2);
  EXPECT_EQ(progress.epochs, 2);
  EXPECT_EQ(progress.wait_seconds, 3.0);
}

TEST_F(TrainingJobTest, DropLastLeavesOutTheRestOfAnEpoch) {
  plan_.drop_last = true;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(context_.progress.total_steps, 4);
  EXPECT_EQ(context_.progress.rows, 16);
}

TEST_F(TrainingJobTest, StepsMayEndInTheMiddleOfAnEpoch) {
  plan_.epochs = 0;
  plan_.steps = 4;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(context_.progress.step, 4);
  EXPECT_EQ(context_.progress.rows, 14);
  EXPECT_EQ(context_.progress.total_rows, 14);
  EXPECT_EQ(context_.progress.epochs, 2);
}

TEST_F(TrainingJobTest, DataWithoutABatchIsAnError) {
  plan_.drop_last = true;
  plan_.batch_size = 11;
  EXPECT_THAT(RunJob(), RefusesField("spec.train.batch_size",
                                     HasSubstr("11 exceeds the 10 rows for training")));
  rows_ = 0;
  plan_.drop_last = false;
  EXPECT_THAT(RunJob(), RefusesField("spec.train.data.path", HasSubstr("no rows are left")));
}

TEST_F(TrainingJobTest, TheLastStepIsInACheckpointBeforeTheJobCountsAsTrained) {
  ASSERT_THAT(RunJob(), IsOk());
  ASSERT_TRUE(disk_.checkpoint);
  EXPECT_EQ(disk_.checkpoint->size(), 6);
}

TEST_F(TrainingJobTest, FailedStepFailsTheJob) {
  edit_trainer_ = [](FakeTrainer* trainer) { trainer->fail_at = 3; };
  EXPECT_THAT(RunJob(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "step 3: row 1 is not finite (row 1 of the batch is row 2001 of the "
                       "dataset)"));
  EXPECT_EQ(context_.metrics["loss"].size(), 2);
}

TEST_F(TrainingJobTest, LossThatIsNotFiniteNamesTheInputThatIsNot) {
  edit_trainer_ = [](FakeTrainer* trainer) {
    trainer->fail_at = 3;
    trainer->failure = "the loss (nan) is not finite";
  };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "step 3: the loss (nan) is not finite"));
  nan_batch_ = 2;
  EXPECT_THAT(RunJob(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "step 3: the loss (nan) is not finite (input 'x' holds NaN or "
                       "infinity in row 0 of the batch, which is row 2000 of the dataset)"));
}

TEST_F(TrainingJobTest, DataThatChangesFailsTheJob) {
  data_changed_ = absl::FailedPreconditionError("spec.train.data.path: 'a' has changed");
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has changed")));
}

TEST_F(TrainingJobTest, ChangeOfTheDataExplainsAnErrorOfARead) {
  gone_batch_ = 3;
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition, "data has changed"));
}

TEST_F(TrainingJobTest, ClosesItsTrainerHoweverItEnds) {
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_FALSE(trainer_->open());
  disk_ = FakeDisk();
  context_ = FakeContext();
  edit_trainer_ = [](FakeTrainer* trainer) { trainer->fail_at = 3; };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("step 3")));
  EXPECT_FALSE(trainer_->open());
}

TEST_F(TrainingJobTest, SkippedStepHasNoLoss) {
  edit_trainer_ = [](FakeTrainer* trainer) { trainer->skip_at = 2; };
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_FALSE(context_.metrics["loss"].contains(2));
  EXPECT_EQ(context_.progress.step, 6);
}

TEST_F(TrainingJobTest, EvaluatesAfterEachIntervalAndAtTheEnd) {
  evaluates_ = true;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_THAT(trainer_->evaluated, ElementsAre(3, 6));
  plan_.evaluate_steps = 4;
  context_ = FakeContext();
  disk_ = FakeDisk();
  losses_ = {{6, 0.25}};
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_THAT(trainer_->evaluated, ElementsAre(4, 6));
  EXPECT_THAT(result.metrics, ElementsAre(Pair("accuracy", 0.75), Pair("loss", 0.25)));
  EXPECT_EQ(context_.metrics["evaluation/loss"][6], 0.25);
  EXPECT_EQ(context_.metrics["evaluation/accuracy"][6], 0.75);
}

TEST_F(TrainingJobTest, BatchesOfAnEvaluationAreActivity) {
  evaluates_ = true;
  ASSERT_THAT(RunJob(), IsOk());
  // Two evaluations of two batches, and their ends.
  EXPECT_EQ(context_.activities, 6);
}

TEST_F(TrainingJobTest, PublishesTheBestEvaluation) {
  evaluates_ = true;
  plan_.publish = JobPublish::kBest;
  plan_.evaluate_steps = 1;
  losses_ = {{1, std::nan("")}, {2, 0.5}, {3, 0.2}, {4, 0.3}, {5, 0.2}};
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  ASSERT_EQ(disk_.versions.size(), 1);
  EXPECT_THAT(disk_.versions[0], ElementsAre(0, 1, 2));
  EXPECT_EQ(result.step, 3);
  EXPECT_THAT(result.metrics, ElementsAre(Pair("accuracy", 0.8), Pair("loss", 0.2)));
}

TEST_F(TrainingJobTest, LargerAccuracyIsBetter) {
  evaluates_ = true;
  plan_.publish = JobPublish::kBest;
  plan_.best_metric = "accuracy";
  losses_ = {{3, 0.2}, {6, 0.3}};
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.step, 3);
}

TEST_F(TrainingJobTest, NoBestWithoutANumber) {
  evaluates_ = true;
  plan_.publish = JobPublish::kBest;
  losses_ = {{3, std::nan("")}, {6, std::nan("")}};
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("no evaluation has a value of 'loss'")));
  plan_.best_metric = "mse";
  context_ = FakeContext();
  disk_ = FakeDisk();
  EXPECT_THAT(RunJob(),
              RefusesField("spec.train.best_metric", HasSubstr("'mse' is not evaluated")));
}

TEST_F(TrainingJobTest, EndsEarlyWithTheBestWeightsAfterThePatience) {
  evaluates_ = true;
  plan_.epochs = 100;
  plan_.evaluate_steps = 1;
  plan_.publish = JobPublish::kBest;
  plan_.early_stopping = EarlyStopping{.metric = "loss", .patience = 2, .min_delta = 0.1};
  // The fall at step 3 is less than min_delta, but it is the best evaluation.
  losses_ = {{1, 0.9}, {2, 0.5}, {3, 0.45}, {4, std::nan("")}, {5, 0.1}};
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.step, 3);
  EXPECT_EQ(result.reason, "stopped early at step 4 of 300: no better 'loss' in 2 evaluations");
  EXPECT_THAT(disk_.versions[0], ElementsAre(0, 1, 2));
  EXPECT_THAT(trainer_->evaluated, ElementsAre(1, 2, 3, 4));
}

TEST_F(TrainingJobTest, LargerCanBeBetterForEarlyStopping) {
  evaluates_ = true;
  plan_.evaluate_steps = 1;
  plan_.early_stopping =
      EarlyStopping{.metric = "accuracy", .larger_is_better = true, .patience = 1};
  losses_ = {{1, 0.9}, {2, 0.5}, {3, 0.5}};
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.step, 3);
}

TEST_F(TrainingJobTest, EarlyStoppingThatNeverAppliesLeavesTheLength) {
  evaluates_ = true;
  plan_.evaluate_steps = 1;
  plan_.early_stopping = EarlyStopping{.metric = "loss", .patience = 2};
  losses_ = {{1, 0.9}, {2, 0.9}, {3, 0.8}, {4, 0.7}, {5, 0.7}, {6, 0.7}};
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.step, 6);
  EXPECT_EQ(result.reason, "");
}

TEST_F(TrainingJobTest, EarlyStoppingCountsOverRestarts) {
  evaluates_ = true;
  plan_.epochs = 100;
  plan_.evaluate_steps = 1;
  plan_.publish = JobPublish::kLast;
  plan_.early_stopping = EarlyStopping{.metric = "loss", .patience = 3};
  losses_ = {{1, 0.5}, {2, 0.6}, {3, 0.7}, {4, 0.8}, {5, 0.1}};
  for (int64_t stop_at = 1; stop_at <= 3; ++stop_at) {
    context_.decide_stop = [stop_at](const JobProgress& progress) {
      return progress.step >= stop_at ? JobStop::kDrain : JobStop::kNone;
    };
    EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped at step")));
  }
  context_.decide_stop = nullptr;
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.step, 4);
  EXPECT_THAT(disk_.versions[0], ElementsAre(0, 1, 2, 3));
}

TEST_F(TrainingJobTest, ProgressIsCompleteAfterAnEarlyEnd) {
  evaluates_ = true;
  plan_.epochs = 100;
  plan_.evaluate_steps = 1;
  plan_.early_stopping = EarlyStopping{.metric = "loss", .patience = 1};
  losses_ = {{1, 0.5}, {2, 0.4}, {3, 0.3}, {4, 0.3}};
  EXPECT_THAT(RunJob(), IsOk());
  const JobProgress progress = context_.progress;
  EXPECT_EQ(progress.step, 4);
  EXPECT_EQ(progress.total_steps, 4);
  EXPECT_EQ(progress.total_rows, progress.rows);
  EXPECT_EQ(progress.epoch, progress.epochs);
}

TEST_F(TrainingJobTest, StepsThatACrashUndidAreMadeAgainUpToTheEarlyEnd) {
  evaluates_ = true;
  plan_.epochs = 100;
  plan_.evaluate_steps = 1;
  plan_.publish = JobPublish::kLast;
  plan_.early_stopping = EarlyStopping{.metric = "loss", .patience = 1};
  losses_ = {{1, 0.5}, {2, 0.6}};
  edit_trainer_ = [](FakeTrainer* trainer) {
    trainer->save_error = absl::UnavailableError("crash");
  };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kUnavailable, "crash"));
  edit_trainer_ = nullptr;
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.step, 2);
  EXPECT_THAT(disk_.versions[0], ElementsAre(0, 1));
}

TEST_F(TrainingJobTest, PauseAndPreemptionFreeTheTrainersMemory) {
  for (const JobStop stop : {JobStop::kPause, JobStop::kPreempt, JobStop::kDrain}) {
    context_.decide_stop = [stop](const JobProgress&) { return stop; };
    EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped at step")));
    EXPECT_EQ(trainer_->released, stop != JobStop::kDrain);
    EXPECT_TRUE(disk_.checkpoint.has_value());
  }
}

TEST_F(TrainingJobTest, StopsWithACheckpointAndContinuesThere) {
  plan_.publish = JobPublish::kLast;
  context_.decide_stop = [](const JobProgress& progress) {
    return progress.step >= 2 ? JobStop::kDrain : JobStop::kNone;
  };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped at step ")));
  const auto step = static_cast<int64_t>(disk_.checkpoint->size());
  EXPECT_GE(step, 2);
  EXPECT_EQ(context_.saved.step, step);
  EXPECT_EQ(context_.saved.durable_rows, context_.saved.rows);
  EXPECT_EQ(context_.continued_after, 0);
  context_.decide_stop = nullptr;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(context_.continued_after, step);
  EXPECT_THAT(disk_.versions[0], ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(TrainingJobTest, StopsWithACheckpointWhileABatchIsRead) {
  stop_batch_ = 4;
  on_stop_batch_ = [this] {
    context_.decide_stop = [](const JobProgress&) { return JobStop::kPause; };
  };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, "stopped at step 4"));
  EXPECT_EQ(disk_.checkpoint->size(), 4);
  EXPECT_TRUE(trainer_->released);
}

TEST_F(TrainingJobTest, StopsWithinAnEvaluationWhichIsMadeAgain) {
  evaluates_ = true;
  int asked = 0;
  context_.decide_stop = [&asked](const JobProgress& progress) {
    // The first question at this step comes before the evaluation, the second one within it.
    return progress.step == 3 && ++asked >= 2 ? JobStop::kDrain : JobStop::kNone;
  };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, "stopped at step 3"));
  EXPECT_THAT(trainer_->evaluated, IsEmpty());
  EXPECT_EQ(disk_.checkpoint->size(), 3);
  context_.decide_stop = nullptr;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_THAT(trainer_->evaluated, ElementsAre(3, 6));
}

// Both are remembered before the first step.
TEST_F(TrainingJobTest, DoesNotContinueWithOtherData) {
  evaluates_ = true;
  context_.decide_stop = [](const JobProgress&) { return JobStop::kDrain; };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, "stopped at step 0"));
  context_.decide_stop = nullptr;
  training_data_ = "c";
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition, "expected data a"));
  training_data_ = "a";
  evaluation_data_ = "c";
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition, "expected data b"));
  evaluation_data_ = "b";
  EXPECT_THAT(RunJob(), IsOk());
}

TEST_F(TrainingJobTest, PreparesAllDataBeforeTheFirstStep) {
  evaluates_ = true;
  data_error_ = absl::CancelledError("stopped while the data was prepared");
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("data was prepared")));
  data_error_ = absl::OkStatus();
  evaluation_error_ = absl::InvalidArgumentError("row 3: null");
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kInvalidArgument, "row 3: null"));
  EXPECT_THAT(context_.metrics, IsEmpty());
}

TEST_F(TrainingJobTest, StopsEvenIfTheCheckpointFails) {
  edit_trainer_ = [](FakeTrainer* trainer) {
    trainer->save_error = absl::ResourceExhaustedError("disk full");
  };
  context_.decide_stop = [](const JobProgress&) { return JobStop::kDrain; };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("step 0")));
  EXPECT_THAT(context_.log.back(), HasSubstr("disk full"));
}

TEST_F(TrainingJobTest, ReportsTheRowsOfTheNewestCheckpoint) {
  checkpoint_every_ = 4;
  edit_trainer_ = [](FakeTrainer* trainer) { trainer->fail_at = 6; };
  EXPECT_FALSE(RunJob().ok());
  EXPECT_EQ(context_.progress.durable_rows, 14);
}

TEST_F(TrainingJobTest, CleanUpReleasesTheTrainer) {
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_FALSE(trainer_->released);
  job_->CleanUp();
  EXPECT_TRUE(trainer_->released);
}

// The server crashes while it makes a step, or while the job saves its state. However often, the
// job trains, evaluates and publishes the same.
TEST_F(TrainingJobTest, CrashesChangeNothing) {
  evaluates_ = true;
  plan_.epochs = 3;
  plan_.evaluate_steps = 2;
  checkpoint_every_ = 2;
  losses_ = {{2, 0.5}, {4, 0.2}, {6, 0.3}, {8, 0.1}};
  for (const JobPublish publish : {JobPublish::kLast, JobPublish::kBest}) {
    plan_.publish = publish;
    context_ = FakeContext();
    disk_ = FakeDisk();
    BRAID_ASSERT_OK_AND_ASSIGN(const JobResult expected, RunJob());
    const std::vector<std::vector<double>> versions = disk_.versions;
    const auto metrics = context_.metrics;
    for (unsigned seed = 0; seed < 50; ++seed) {
      context_ = FakeContext();
      disk_ = FakeDisk();
      std::mt19937 random(seed);
      absl::StatusOr<JobResult> result = absl::UnknownError("not run");
      for (int crashes = 0; crashes < 100 && !result.ok(); ++crashes) {
        // A crash leaves the process: what the job returns does not matter.
        context_.save_error = random() % 4 == 0 ? absl::AbortedError("crash") : absl::OkStatus();
        const unsigned steps = random() % 12;
        edit_trainer_ = [steps](FakeTrainer* trainer) {
          trainer->fail_at = steps < 9 ? static_cast<int64_t>(steps) : -1;
        };
        result = RunJob();
        if (!result.ok()) {
          context_.metrics = context_.written;
        }
      }
      ASSERT_THAT(result, IsOk()) << seed;
      EXPECT_EQ(*result, expected) << seed;
      EXPECT_EQ(disk_.versions, versions) << seed;
      EXPECT_EQ(context_.metrics, metrics) << seed;
    }
  }
}

}  // namespace
}  // namespace braid
