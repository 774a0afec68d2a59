// Earlier states of a trainer, from its checkpoints and its journal.
#include "server/training/trainer/past_trainer.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/task_pool.h"
#include "server/base/wait_for.h"
#include "server/storage/journal.h"
#include "tests/fakes/registry_bench.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A request is the number of rows of a step's batch.
class PastTrainerTest : public StoredRegistryTest {
 protected:
  PastTrainerTest() : PastTrainerTest({.bytes = int64_t{1} << 30}) {}
  explicit PastTrainerTest(JournalHistory history) : history_(history) {
    read_operation_ = [this](OperationKind, const std::string& request) {
      int64_t sequence = 0;
      int64_t rows = 0;
      EXPECT_TRUE(absl::SimpleAtoi(request.substr(0, request.find(' ')), &sequence));
      EXPECT_TRUE(absl::SimpleAtoi(request.substr(request.find(' ') + 1), &rows));
      if (sequence == paused_) {
        reached_.Notify();
        go_.WaitForNotification();
      }
      return absl::StatusOr<Operation>(StepOf(sequence, sequence == misread_ ? rows + 1 : rows));
    };
    Start();
    TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.1});
    spec.name = "a";
    spec.seed = 7;
    spec.checkpoints.keep = 2;
    spec.journal_history = history_;
    EXPECT_THAT(Create(spec), IsOk());
  }

  static Operation StepOf(int64_t sequence, int64_t rows) {
    Operation operation = BatchOperation(sequence, rows);
    operation.fingerprint = {static_cast<uint64_t>(sequence), static_cast<uint64_t>(rows)};
    operation.batch_id = absl::StrCat("batch ", sequence);
    operation.write_request = [sequence, rows](std::string* out) {
      absl::StrAppend(out, sequence, " ", rows);
    };
    return operation;
  }
  void Apply(int64_t first, int64_t last) {
    for (int64_t sequence = first; sequence <= last; ++sequence) {
      ASSERT_THAT(Do("a", StepOf(sequence, 10 + sequence)), IsOk());
    }
  }

  absl::StatusOr<ReplayReport> Replay(const ReplayRange& range = {}) {
    Pending<absl::StatusOr<ReplayReport>> pending;
    registry().Replay(
        "a", range, [] { return false; }, pending.done());
    return pending.Wait();
  }
  absl::StatusOr<TrainerInfo> Fork(std::optional<int64_t> step, const std::string& name) {
    Pending<absl::StatusOr<TrainerInfo>> pending;
    registry().Fork(
        "a", step, name, [] { return false; }, pending.done());
    return pending.Wait();
  }
  absl::StatusOr<CheckpointInfo> RestoreStep(int64_t step) {
    Pending<absl::StatusOr<CheckpointInfo>> pending;
    registry().RestoreStep(
        "a", step, [] { return false; }, pending.done());
    return pending.Wait();
  }

  const JournalHistory history_;
  // The operation at which a recomputation waits for go_.
  std::atomic<int64_t> paused_ = 0;
  absl::Notification reached_;
  absl::Notification go_;
  int64_t misread_ = 0;  // the operation whose batch is another one when it is read again
};

TEST_F(PastTrainerTest, AReplayTellsTheFirstOperationWithAnotherResult) {
  Apply(1, 8);
  BRAID_ASSERT_OK_AND_ASSIGN(ReplayReport report, Replay());
  EXPECT_FALSE(report.difference.has_value());
  EXPECT_EQ(report.operations, 8);
  misread_ = 5;
  BRAID_ASSERT_OK_AND_ASSIGN(report, Replay());
  ASSERT_TRUE(report.difference.has_value());
  EXPECT_EQ(report.difference->sequence, 5);
  EXPECT_EQ(report.difference->step, 5);
  EXPECT_EQ(report.difference->batch_id, "batch 5");
  EXPECT_NE(report.difference->recorded, report.difference->replayed);
  EXPECT_EQ(report.operations, 5);
  // The steps before it are equal.
  BRAID_ASSERT_OK_AND_ASSIGN(report, Replay({.first_step = 2, .last_step = 4}));
  EXPECT_FALSE(report.difference.has_value());
}

TEST_F(PastTrainerTest, AReplayComparesCheckpoints) {
  Apply(1, 3);
  ASSERT_THAT(Save("a"), IsOk());
  // The checkpoint has the weights after operation 3, whose result is of the weights before it.
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<CheckpointInfo> checkpoints, Checkpoints("a"));
  BRAID_ASSERT_OK_AND_ASSIGN(const ReplayReport report, Replay());
  EXPECT_EQ(report.checkpoints, 1);
  EXPECT_FALSE(report.difference.has_value());
  EXPECT_EQ(checkpoints.size(), 2);
}

TEST_F(PastTrainerTest, ANewNameThatIsTakenChangesNothing) {
  Apply(1, 3);
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo fork, Fork(2, "b"));
  EXPECT_EQ(fork.step, 2);
  EXPECT_TRUE(fork.on_disk);
  EXPECT_THAT(Fork(1, "b"), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'b'")));
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo same, Get("b"));
  EXPECT_EQ(same.step, 2);
  EXPECT_EQ(same.id, fork.id);
  EXPECT_NE(same.id, Get("a")->id);
}

TEST_F(PastTrainerTest, AForkCountsTowardTheMaximumOfTrainers) {
  for (size_t number = 1; number < kMost; ++number) {
    ASSERT_THAT(Fork(std::nullopt, absl::StrCat("fork-", number)), IsOk());
  }
  EXPECT_THAT(Fork(std::nullopt, "one-more"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--max_trainers")));
}

TEST_F(PastTrainerTest, AMisreadOperationFailsAForkAndLeavesTheTrainer) {
  Apply(1, 4);
  misread_ = 2;
  // The operation after it follows another history.
  EXPECT_THAT(Fork(4, "b"), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("other operations")));
  EXPECT_THAT(RestoreStep(3), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("other")));
  misread_ = 0;
  EXPECT_EQ(Get("a")->step, 4);
  Apply(5, 5);
  EXPECT_THAT(Get("b"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'b'")));
  ASSERT_THAT(RestoreStep(3), IsOk());
  EXPECT_EQ(Get("a")->step, 3);
}

TEST_F(PastTrainerTest, AReplayCrossesRestores) {
  Apply(1, 6);
  // Twice to the same step, and once to the end of a line.
  ASSERT_THAT(RestoreStep(3), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(ReplayReport report, Replay({.last_step = 3}));
  EXPECT_EQ(report.operations, 3);
  Apply(4, 5);
  ASSERT_THAT(RestoreStep(3), IsOk());
  Apply(4, 7);
  ASSERT_THAT(RestoreStep(7), IsOk());
  Apply(8, 9);
  BRAID_ASSERT_OK_AND_ASSIGN(report, Replay());
  EXPECT_EQ(report.first_step, 1);
  EXPECT_EQ(report.last_step, 9);
  EXPECT_EQ(report.operations, 9);
  EXPECT_FALSE(report.difference.has_value());
  EXPECT_EQ(report.checkpoints, 2) << "those that the restores to 3 and 7 have";
  EXPECT_THAT(Replay({.first_step = 10}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("first_step: 10"), HasSubstr("last one is 9"))));
}

class WithoutHistoryTest : public PastTrainerTest {
 protected:
  WithoutHistoryTest() : PastTrainerTest(JournalHistory()) {}
};

TEST_F(WithoutHistoryTest, WhatARecomputationNeedsStaysWhileTheTrainerContinues) {
  Apply(1, 4);
  // The trainer trains and saves while the fork is computed.
  paused_ = 2;
  Pending<absl::StatusOr<TrainerInfo>> fork;
  registry().Fork(
      "a", 4, "b", [] { return false; }, fork.done());
  reached_.WaitForNotification();
  for (int64_t sequence = 5; sequence <= 12; ++sequence) {
    Apply(sequence, sequence);
    ASSERT_THAT(Save("a"), IsOk());
  }
  go_.Notify();
  ASSERT_THAT(fork.Wait(), IsOk());
  EXPECT_EQ(fork.Wait()->step, 4);
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<CheckpointInfo> kept, Checkpoints("a"));
  EXPECT_THAT(kept, SizeIs(9)) << "of operations 0 and 5 to 12";
  ASSERT_THAT(Do("a", StepOf(13, 5)), IsOk());
  ASSERT_THAT(Save("a"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<CheckpointInfo> fewer, Checkpoints("a"));
  EXPECT_LE(fewer.size(), 3);
}

TEST_F(PastTrainerTest, CallsEndWhenTheServerDoes) {
  Apply(1, 4);
  registry().CancelReplays();
  const auto shutting_down =
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the server is shutting down"));
  EXPECT_THAT(Replay(), shutting_down);
  EXPECT_THAT(Fork(2, "b"), shutting_down);
  EXPECT_THAT(RestoreStep(2), shutting_down);
  EXPECT_EQ(Get("a")->step, 4);
}

TEST_F(PastTrainerTest, LeavesOutAnOperationThatHasAResultAndAFailure) {
  Apply(1, 2);
  Stop();
  {
    TaskPool pool("journal", 1);
    BRAID_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<Journal> journal,
        Journal::Open(dir_.path() / "trainers/a/journal", "another process", /*line=*/0, &pool));
    journal->Append(kFailureRecord, 2, [](std::string*) {});
    ASSERT_THAT(WaitFor<absl::Status>([&](auto done) { journal->Sync(done); }), IsOk());
  }
  Start();
  registry().RestoreStored();
  EXPECT_EQ(Get("a")->step, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const ReplayReport report, Replay());
  EXPECT_EQ(report.last_step, 1);
  EXPECT_THAT(Fork(2, "b"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("step: 2")));
}

TEST_F(PastTrainerTest, RestoresDeleteOldCheckpoints) {
  Apply(1, 2);
  for (int restore = 0; restore < 30; ++restore) {
    ASSERT_THAT(RestoreStep(1), IsOk());
    Apply(2, 2);
  }
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<CheckpointInfo> kept, Checkpoints("a"));
  EXPECT_LE(kept.size(), 2 + kHistoryCheckpoints);
  EXPECT_EQ(Get("a")->step, 2);
}

TEST_F(PastTrainerTest, ARestartContinuesFromARestoredStep) {
  Apply(1, 6);
  ASSERT_THAT(RestoreStep(4), IsOk());
  Apply(5, 5);
  Start();
  registry().RestoreStored();
  EXPECT_EQ(Get("a")->step, 5);
  ASSERT_THAT(RestoreStep(6), IsOk()) << "an undone step";
  EXPECT_EQ(Get("a")->applied_sequence, 6);
}

}  // namespace
}  // namespace braid
