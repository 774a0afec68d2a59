// A trainer that is stopped without a checkpoint continues after its last operation.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/trainer_bench.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// With dropout.
torch::jit::Module Module() {
  torch::jit::Module module = TwoLayers();
  module.define(R"(
def forward(self, x):
  return torch.dropout(torch.tanh(x @ self.w1 + self.b1), 0.5, self.training) @ self.w2
)");
  return module;
}

TrainerSpec JournaledSpec() {
  TrainerSpec spec = TrainedSpec(AdamSpec{.lr = 0.05});
  spec.seed = 7;
  return spec;
}

Operation WithRequest(Operation operation, const std::string& request) {
  operation.client_id = "client";
  operation.fingerprint = {static_cast<uint64_t>(operation.sequence),
                           std::hash<std::string>()(request)};
  operation.write_request = [request](std::string* out) { out->append(request); };
  return operation;
}

// The operation of a request such as "Step 3": steps, forward passes and accumulated gradients.
Operation FromRequest(const std::string& request) {
  const size_t space = request.find(' ');
  const std::string kind = request.substr(0, space);
  const int64_t sequence = std::atoll(request.c_str() + space);
  Operation operation;
  if (kind == "OptimStep") {
    operation = OptimStep(sequence);
  } else if (kind == "Publish") {
    operation = Publish(sequence);
  } else if (kind == "KeptForward") {
    operation = KeptForward(sequence);
  } else if (kind == "Backward") {
    operation = BackwardOfOnes(sequence);
  } else {
    operation =
        BatchOperation(sequence, 3 + sequence,
                       kind == "Step" ? OperationKind::kStep : OperationKind::kForwardBackward);
  }
  return WithRequest(std::move(operation), request);
}

Operation OperationOf(int64_t sequence) {
  constexpr const char* kKinds[] = {"Step", "Accumulate", "Accumulate", "OptimStep"};
  return FromRequest(absl::StrCat(kKinds[static_cast<size_t>(sequence) % 4], " ", sequence));
}

// A life of the server, with a first checkpoint; another one on the same directory is the next.
class Life {
 public:
  explicit Life(const TempDir& dir, const TrainerSpec& spec = JournaledSpec())
      : bench_(Module(), /*workers=*/2, dir.path().string()) {
    bench_.KeepJournals([](OperationKind, const std::string& request) -> absl::StatusOr<Operation> {
      return FromRequest(request);
    });
    const bool is_first = !fs::exists(bench_.checkpoints());
    trainer_ = bench_.MustCreate(spec);
    if (is_first) {
      EXPECT_THAT(Save(*trainer_), IsOk());
    }
  }

  void Apply(int64_t first, int64_t last) {
    for (int64_t sequence = first; sequence <= last; ++sequence) {
      ASSERT_THAT(Do(*trainer_, OperationOf(sequence)), IsOk()) << sequence;
    }
  }
  Trainer& operator*() { return *trainer_; }
  Trainer* operator->() { return trainer_.get(); }
  TrainerBench& bench() { return bench_; }
  State state() { return *StateOf(*trainer_); }

 private:
  TrainerBench bench_;
  std::unique_ptr<Trainer> trainer_;
};

class TrainerJournalTest : public ::testing::Test {
 protected:
  // The state after `last` operations in a row.
  State Undisturbed(int64_t last) {
    const TempDir dir;
    Life life(dir);
    life.Apply(1, last);
    return life.state();
  }
  std::vector<fs::path> Segments() const {
    std::vector<fs::path> paths;
    if (fs::exists(dir_.path() / "journal")) {
      for (const auto& entry : fs::directory_iterator(dir_.path() / "journal")) {
        paths.push_back(entry.path());
      }
    }
    std::ranges::sort(paths);
    return paths;
  }

  // Returns where the journal's next record begins after byte `offset`.
  uintmax_t RecordAfter(uintmax_t offset) const {
    const size_t found = Contents(Segments().front()).find("BraidRec", offset + 1);
    EXPECT_NE(found, std::string::npos);
    return found;
  }
  // Applies operations 1 to 3. Removes the result of the last one from the journal, as a crash
  // before it was written.
  void LoseTheResultOfTheThird() const {
    uintmax_t result = 0;
    {
      Life before(dir_);
      before.Apply(1, 2);
      const uintmax_t size = fs::file_size(Segments().front());
      before.Apply(3, 3);
      result = RecordAfter(size);
    }
    fs::resize_file(Segments().front(), result);
  }

  const TempDir dir_;
};

TEST_F(TrainerJournalTest, ARestartContinuesAfterTheLastOperation) {
  const State expected = Undisturbed(12);
  for (int64_t stop = 1; stop <= 8; ++stop) {
    const TempDir dir;
    OperationResult last;
    {
      Life before(dir);
      before.Apply(1, stop - 1);
      last = *Do(*before, OperationOf(stop));
      EXPECT_EQ(last.durable_sequence, stop);
      EXPECT_EQ(before->info().durable_sequence, stop);
    }
    Life after(dir);
    ASSERT_THAT(Resume(*after), IsOk());
    EXPECT_EQ(after->info().applied_sequence, stop);
    EXPECT_EQ(after->info().durable_sequence, stop);
    EXPECT_EQ(after->info().step, last.step);
    EXPECT_EQ(after->info().last_operator, "client");
    // Its reply may have been lost as well.
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult again, Do(*after, OperationOf(stop)));
    EXPECT_TRUE(again.replayed);
    EXPECT_EQ(again.loss, last.loss);
    EXPECT_EQ(again.lr, last.lr);
    after.Apply(stop + 1, 12);
    ExpectSameState(after.state(), expected, 0);
  }
}

TEST_F(TrainerJournalTest, ContinuesFromACheckpointBetweenOperations) {
  {
    Life before(dir_);
    before.Apply(1, 5);
    ASSERT_THAT(Save(*before), IsOk());
    before.Apply(6, 9);
  }
  for (int64_t restart = 0; restart < 3; ++restart) {
    Life after(dir_);
    ASSERT_THAT(Resume(*after), IsOk());
    ASSERT_EQ(after->info().applied_sequence, 9 + restart);
    after.Apply(10 + restart, 10 + restart);
  }
  Life last(dir_);
  ASSERT_THAT(Resume(*last), IsOk());
  ExpectSameState(last.state(), Undisturbed(12), 0);
}

TEST_F(TrainerJournalTest, WithoutAJournalARestartGoesBackToTheCheckpoint) {
  TrainerSpec spec = JournaledSpec();
  spec.journal = JournalMode::kNone;
  {
    Life before(dir_, spec);
    before.Apply(1, 3);
    EXPECT_EQ(before->info().durable_sequence, 0);
  }
  EXPECT_THAT(Segments(), IsEmpty());
  Life after(dir_, spec);
  ASSERT_THAT(Resume(*after), IsOk());
  EXPECT_EQ(after->info().applied_sequence, 0);
}

TEST_F(TrainerJournalTest, OperationsThatFailedAreNotAppliedAgain) {
  {
    Life before(dir_);
    before.Apply(1, 1);
    EXPECT_FALSE(Do(*before, FromRequest("Backward 2")).ok());  // there is no graph
    before.Apply(2, 2);
    EXPECT_FALSE(Do(*before, FromRequest("Backward 3")).ok());
  }
  Life after(dir_);
  ASSERT_THAT(Resume(*after), IsOk());
  EXPECT_EQ(after->info().applied_sequence, 2);
  ExpectSameState(after.state(), Undisturbed(2), 0);
}

TEST_F(TrainerJournalTest, AnOperationThatFailsAgainAfterACrashIsLeftOut) {
  uintmax_t without_failure = 0;
  {
    Life before(dir_);
    before.Apply(1, 1);
    const uintmax_t size = fs::file_size(Segments().front());
    EXPECT_FALSE(Do(*before, FromRequest("Backward 2")).ok());
    // The record of the operation, without that of its failure.
    without_failure = RecordAfter(size);
  }
  fs::resize_file(Segments().front(), without_failure);
  {
    Life after(dir_);
    ASSERT_THAT(Resume(*after), IsOk());
    EXPECT_EQ(after->info().applied_sequence, 1);
    after.Apply(2, 2);
  }
  Life last(dir_);
  ASSERT_THAT(Resume(*last), IsOk());
  ExpectSameState(last.state(), Undisturbed(2), 0);
}

TEST_F(TrainerJournalTest, AnOperationThatEndedTheServerIsLeftOut) {
  LoseTheResultOfTheThird();
  dir_.Write("journal/attempt", "3\n");  // as if the last start had ended while applying it
  for (int restart = 0; restart < 2; ++restart) {
    Life after(dir_);
    ASSERT_THAT(Resume(*after), IsOk());
    EXPECT_EQ(after->info().applied_sequence, 2);
    EXPECT_FALSE(fs::exists(dir_.path() / "journal/attempt"));
  }
  Life last(dir_);
  ASSERT_THAT(Resume(*last), IsOk());
  last.Apply(3, 4);
  ExpectSameState(last.state(), Undisturbed(4), 0);
}

TEST_F(TrainerJournalTest, AnOperationWithoutResultIsAppliedAgain) {
  LoseTheResultOfTheThird();
  Life after(dir_);
  ASSERT_THAT(Resume(*after), IsOk());
  EXPECT_EQ(after->info().applied_sequence, 3);
  EXPECT_FALSE(fs::exists(dir_.path() / "journal/attempt"));
  ExpectSameState(after.state(), Undisturbed(3), 0);
}

TEST_F(TrainerJournalTest, KeepsWhatIsAppliedWhileACheckpointIsWritten) {
  for (int64_t at = 1; at <= 4; ++at) {
    const TempDir dir;
    {
      Life before(dir);
      before.Apply(1, at);
      Pending<absl::StatusOr<CheckpointInfo>> saved;
      before->SaveCheckpoint(saved.done());
      before.Apply(at + 1, 6);
      ASSERT_THAT(saved.Wait(), IsOk());
      before.Apply(7, 7);
    }
    Life after(dir);
    ASSERT_THAT(Resume(*after), IsOk());
    EXPECT_EQ(after->info().applied_sequence, 7);
    ExpectSameState(after.state(), Undisturbed(7), 0);
  }
}

TEST_F(TrainerJournalTest, ARepliesDurableSequenceIsNotThatOfLaterOperations) {
  Life life(dir_);
  absl::Notification gate;
  Operation blocked = OperationOf(1);
  blocked.write_request = [&gate, write = blocked.write_request](std::string* out) {
    gate.WaitForNotification();
    write(out);
  };
  PendingOperation first;
  life->Submit(std::move(blocked), first.done());
  PendingOperation second;
  life->Submit(OperationOf(2), second.done());
  // A checkpoint of both operations is durable before their replies.
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo saved, Save(*life));
  EXPECT_EQ(saved.sequence, 2);
  gate.Notify();
  EXPECT_EQ(first.Wait()->durable_sequence, 1);
  EXPECT_EQ(second.Wait()->durable_sequence, 2);
}

TEST_F(TrainerJournalTest, ARestartContinuesAfterARestore) {
  {
    Life before(dir_);
    before.Apply(1, 2);
    BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo second, Save(*before));
    before.Apply(3, 6);
    ASSERT_THAT(Restore(*before, second.name), IsOk());
    EXPECT_EQ(before->info().durable_sequence, 2);
  }
  {
    Life after(dir_);
    ASSERT_THAT(Resume(*after), IsOk());
    // Not the operations of before the restore.
    EXPECT_EQ(after->info().applied_sequence, 2);
    ASSERT_THAT(Do(*after, FromRequest("Step 3")), IsOk());
  }
  Life last(dir_);
  ASSERT_THAT(Resume(*last), IsOk());
  EXPECT_EQ(last->info().applied_sequence, 3);
  const TempDir other;
  Life expected(other);
  expected.Apply(1, 2);
  ASSERT_THAT(Do(*expected, FromRequest("Step 3")), IsOk());
  ExpectSameState(last.state(), expected.state(), 0);
}

TEST_F(TrainerJournalTest, DoesNotPublishAgain) {
  {
    Life before(dir_);
    before.Apply(1, 2);
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult published,
                               Do(*before, FromRequest("Publish 3")));
    EXPECT_EQ(published.version, 2);
    before.Apply(4, 4);
  }
  Life after(dir_);
  ASSERT_THAT(Resume(*after), IsOk());
  EXPECT_EQ(after->info().applied_sequence, 4);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult next, Do(*after, FromRequest("Publish 5")));
  EXPECT_EQ(next.version, 3);
}

TEST_F(TrainerJournalTest, PublishesAVersionAgainThatACrashHasLost) {
  {
    Life before(dir_);
    before.Apply(1, 2);
    ASSERT_THAT(Do(*before, FromRequest("Publish 3")), IsOk());
  }
  for (const auto& entry : fs::recursive_directory_iterator(dir_.path() / "models")) {
    if (entry.path().filename() == "2") {
      fs::remove_all(entry.path());
      break;
    }
  }
  Life after(dir_);
  ASSERT_THAT(Resume(*after), IsOk());
  EXPECT_EQ(after.bench().publisher()->WaitForDurability("m", 2).durability, Durability::kDurable);
  EXPECT_EQ(after->info().applied_sequence, 3);
}

TEST_F(TrainerJournalTest, RepeatsTheReplyOfAPublication) {
  {
    Life before(dir_);
    before.Apply(1, 2);
    ASSERT_THAT(Do(*before, FromRequest("Publish 3")), IsOk());
  }
  Life after(dir_);
  ASSERT_THAT(Resume(*after), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult again, Do(*after, FromRequest("Publish 3")));
  EXPECT_TRUE(again.replayed);
  EXPECT_EQ(again.version, 2);
  EXPECT_EQ(again.model, "m");
}

TEST_F(TrainerJournalTest, ARestartBetweenForwardAndBackwardKeepsTheGraph) {
  const auto train = [](Life& life) {
    ASSERT_THAT(Do(*life, FromRequest("Backward 2")), IsOk());
    ASSERT_THAT(Do(*life, FromRequest("OptimStep 3")), IsOk());
  };
  for (const std::string saves : {"nothing", "a checkpoint", "the last one"}) {
    const TempDir dir;
    {
      Life before(dir, ClientSpec());
      ASSERT_THAT(Do(*before, FromRequest("KeptForward 1")), IsOk());
      if (saves == "a checkpoint") {
        ASSERT_THAT(Save(*before), IsOk());
      } else if (saves == "the last one") {
        Pending<absl::StatusOr<CheckpointInfo>> saved;
        before->SaveLast(saved.done());
        ASSERT_THAT(saved.Wait(), IsOk());
      }
    }
    Life after(dir, ClientSpec());
    ASSERT_THAT(Resume(*after), IsOk());
    train(after);
    const TempDir other;
    Life expected(other, ClientSpec());
    ASSERT_THAT(Do(*expected, FromRequest("KeptForward 1")), IsOk());
    train(expected);
    ExpectSameState(after.state(), expected.state(), 0);
  }
}

TEST_F(TrainerJournalTest, KeepsTheCheckpointFromWhichAKeptGraphIsBuiltAgain) {
  // So large that the checkpoint after it starts a segment of the journal.
  const std::string large = absl::StrCat("OptimStep 3", std::string(5 << 20, ' '));
  const auto begin = [&large](Life& life) {
    ASSERT_THAT(Do(*life, FromRequest("KeptForward 1")), IsOk());
    ASSERT_THAT(Do(*life, FromRequest("Backward 2")), IsOk());
    ASSERT_THAT(Do(*life, FromRequest(large)), IsOk());
  };
  {
    Life before(dir_, ClientSpec());
    begin(before);
    // Two checkpoints wait until the second one has a kept graph.
    absl::Notification gate;
    before->SetBeforeCheckpoint([&gate] { gate.WaitForNotification(); });
    Pending<absl::StatusOr<CheckpointInfo>> automatic;
    before->SaveLast(automatic.done());
    ASSERT_THAT(Do(*before, FromRequest("KeptForward 4")), IsOk());
    Pending<absl::StatusOr<CheckpointInfo>> with_graph;
    before->SaveCheckpoint(with_graph.done());
    ASSERT_THAT(Do(*before, FromRequest("Backward 5")), IsOk());
    gate.Notify();
    ASSERT_THAT(automatic.Wait(), IsOk());
    ASSERT_THAT(with_graph.Wait(), IsOk());
    before->SetBeforeCheckpoint(nullptr);
  }
  Life after(dir_, ClientSpec());
  ASSERT_THAT(Resume(*after), IsOk());
  EXPECT_EQ(after->info().applied_sequence, 5);
  ASSERT_THAT(Do(*after, FromRequest("OptimStep 6")), IsOk());
  const TempDir other;
  Life expected(other, ClientSpec());
  begin(expected);
  for (const char* request : {"KeptForward 4", "Backward 5", "OptimStep 6"}) {
    ASSERT_THAT(Do(*expected, FromRequest(request)), IsOk());
  }
  ExpectSameState(after.state(), expected.state(), 0);
}

TEST_F(TrainerJournalTest, AFullDiskStopsTheTrainerUntilThereIsSpace) {
  {
    Life life(dir_);
    life.Apply(1, 2);
    {
      const FileSizeLimit limit(fs::file_size(Segments().front()) + 20);
      EXPECT_THAT(Do(*life, OperationOf(3)),
                  StatusIs(absl::StatusCode::kUnavailable,
                           AllOf(HasSubstr("journal cannot be written"), HasSubstr("segment-"))));
      const State stopped = life.state();
      EXPECT_THAT(Do(*life, OperationOf(3)), StatusIs(absl::StatusCode::kUnavailable, _));
      EXPECT_THAT(Do(*life, OperationOf(4)), StatusIs(absl::StatusCode::kUnavailable, _));
      ExpectSameState(life.state(), stopped, 0);
      EXPECT_EQ(life->info().durable_sequence, 2);
    }
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult third, Do(*life, OperationOf(3)));
    EXPECT_TRUE(third.replayed);
    EXPECT_EQ(third.durable_sequence, 3);
    life.Apply(4, 5);
  }
  Life after(dir_);
  ASSERT_THAT(Resume(*after), IsOk());
  ExpectSameState(after.state(), Undisturbed(5), 0);
}

TEST_F(TrainerJournalTest, AFullDiskLosesNoneOfSeveralOperationsInFlight) {
  {
    Life life(dir_);
    life.Apply(1, 2);
    int64_t reached = 0;
    {
      const FileSizeLimit limit(fs::file_size(Segments().front()) + 20);
      std::vector<PendingOperation> pending(4);
      for (int64_t sequence = 3; sequence <= 6; ++sequence) {
        life->Submit(OperationOf(sequence), pending[static_cast<size_t>(sequence) - 3].done());
      }
      // How many are applied before the first one fails is a matter of time.
      for (const PendingOperation& one : pending) {
        EXPECT_FALSE(one.Wait().ok());
      }
      EXPECT_THAT(pending.front().Wait(), StatusIs(absl::StatusCode::kUnavailable, _));
      reached = life->info().applied_sequence;
      EXPECT_GE(reached, 3);
      EXPECT_EQ(life->info().durable_sequence, 2);
    }
    // A client that does not know the outcome sends the last one again.
    BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult last, Do(*life, OperationOf(reached)));
    EXPECT_EQ(last.durable_sequence, reached);
    life.Apply(reached + 1, 8);
  }
  Life after(dir_);
  ASSERT_THAT(Resume(*after), IsOk());
  ExpectSameState(after.state(), Undisturbed(8), 0);
}

TEST_F(TrainerJournalTest, DamageIsReportedAndARestoreRepairsIt) {
  std::string checkpoint;
  {
    Life before(dir_);
    before.Apply(1, 2);
    BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo saved, Save(*before));
    checkpoint = saved.name;
    before.Apply(3, 6);
  }
  const fs::path segment = Segments().back();
  FlipByte(segment, Contents(segment).find("Accumulate 5"));
  {
    Life after(dir_);
    EXPECT_THAT(Resume(*after), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(segment.string())));
  }
  {
    Life restored(dir_);
    ASSERT_THAT(Restore(*restored, checkpoint), IsOk());
    restored.Apply(3, 4);
  }
  Life last(dir_);
  ASSERT_THAT(Resume(*last), IsOk());
  ExpectSameState(last.state(), Undisturbed(4), 0);
}

TEST_F(TrainerJournalTest, AMissingOperationIsReported) {
  {
    Life before(dir_);
    before.Apply(1, 2);
    BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo saved, Save(*before));
    before.Apply(3, 4);
    // The journal begins after this checkpoint.
    fs::remove_all(fs::path(before.bench().checkpoints()) / saved.name);
  }
  Life after(dir_);
  EXPECT_THAT(Resume(*after), StatusIs(absl::StatusCode::kDataLoss,
                                       HasSubstr("operation 1 is not in the journal")));
}

TEST_F(TrainerJournalTest, ACheckpointMakesTheJournalShort) {
  Life life(dir_);
  life.Apply(1, 8);
  const uintmax_t before = fs::file_size(Segments().front());
  ASSERT_THAT(Save(*life), IsOk());
  life.Apply(9, 9);
  ASSERT_THAT(Segments(), SizeIs(1));
  EXPECT_LT(fs::file_size(Segments().front()), before / 3);
}

}  // namespace
}  // namespace braid
