#include "server/storage/checkpoint_store.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/sealed_directory.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kFirst[] = "step-000000001-sequence-000000002";
constexpr char kSecond[] = "step-000000002-sequence-000000004";
constexpr char kThird[] = "step-000000003-sequence-000000006";

std::vector<std::string> NamesOf(const std::vector<CheckpointInfo>& infos) {
  std::vector<std::string> names;
  for (const CheckpointInfo& info : infos) {
    names.push_back(info.name);
  }
  return names;
}

class CheckpointStoreTest : public ::testing::Test {
 protected:
  CheckpointStoreTest() { Reopen(); }

  // Opens the store again, like a restart.
  void Reopen() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<SharedFiles>> shared = SharedFiles::Open(dir_.path() / "shared");
    ASSERT_THAT(shared, IsOk());
    shared_ = *std::move(shared);
    absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
        CheckpointStore::Open(root(), shared_.get());
    ASSERT_THAT(store, IsOk());
    store_ = *std::move(store);
  }

  int64_t LinksOf(const std::string& checkpoint, const std::string& file) const {
    return static_cast<int64_t>(fs::hard_link_count(root() / checkpoint / file));
  }

  fs::path root() const { return dir_.path() / "checkpoints"; }
  fs::path ModelOf(const std::string& name) const { return root() / name / "model.bin"; }
  fs::path ManifestOf(const std::string& name) const { return root() / name / "manifest.json"; }

  void Write(int64_t step, const std::string& model) {
    EXPECT_THAT(store_->Write(step, 2 * step, R"({"lr": 0.5})", {FileOf("model.bin", model)}),
                IsOk());
  }
  void WriteThree() {
    Write(1, "first");
    Write(2, "second");
    Write(3, "third");
  }

  const TempDir dir_;
  std::unique_ptr<SharedFiles> shared_;
  std::unique_ptr<CheckpointStore> store_;
};

TEST_F(CheckpointStoreTest, ReadsWhatWasWritten) {
  const absl::Time before = absl::Now();
  BRAID_ASSERT_OK_AND_ASSIGN(
      const CheckpointInfo written,
      store_->Write(120, 131, R"({"lr": 0.5})",
                    {FileOf("model.bin", "12345"), FileOf("optimizer.bin", "")}));
  EXPECT_EQ(written.name, "step-000000120-sequence-000000131");
  EXPECT_EQ(written.bytes, 5);
  EXPECT_GE(written.created, before);
  for (const bool reopened : {false, true}) {
    if (reopened) {
      Reopen();
    }
    BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
    EXPECT_EQ(loaded.info.name, written.name);
    EXPECT_EQ(loaded.info.step, 120);
    EXPECT_EQ(loaded.info.sequence, 131);
    EXPECT_EQ(loaded.info.bytes, 5);
    EXPECT_EQ(loaded.info.created, written.created);
    EXPECT_EQ(loaded.state, R"({"lr":0.5})");
    ASSERT_THAT(loaded.files, SizeIs(2));
    EXPECT_EQ(Contents(loaded.files.at("model.bin")), "12345");
    EXPECT_EQ(Contents(loaded.files.at("optimizer.bin")), "");
  }
}

TEST_F(CheckpointStoreTest, CheckpointsShareFiles) {
  ASSERT_THAT(store_->Share({FileOf("base.bin", "the base")}), IsOk());
  WriteThree();
  ASSERT_THAT(Names(dir_.path() / "shared"), SizeIs(1));
  EXPECT_EQ(LinksOf(kFirst, "base.bin"), 4);
  Reopen();
  ASSERT_THAT(store_->Share({FileOf("base.bin", "the base")}), IsOk());
  Write(3, "third again");
  EXPECT_EQ(LinksOf(kThird, "base.bin"), 4);
  EXPECT_EQ(LinksOf(kThird, "model.bin"), 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
  EXPECT_EQ(Contents(loaded.files.at("base.bin")), "the base");
  EXPECT_EQ(Contents(loaded.files.at("model.bin")), "third again");
  EXPECT_EQ(loaded.info.bytes, 19);
  ASSERT_THAT(store_->Retain({.keep = 1}), IsOk());
  EXPECT_EQ(LinksOf(kThird, "base.bin"), 2);
}

TEST_F(CheckpointStoreTest, AnEmptyStoreHasNoNewestCheckpoint) {
  EXPECT_FALSE(store_->newest().has_value());
  EXPECT_THAT(store_->List(), IsEmpty());
  EXPECT_THAT(store_->ReadNewest(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no checkpoints")));
}

TEST_F(CheckpointStoreTest, ListsInTheOrderOfWriting) {
  Write(2, "second");
  Write(1, "first, after a return to the start");
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kFirst));
  Reopen();
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kFirst));
  EXPECT_EQ(store_->newest()->name, kFirst);
}

TEST_F(CheckpointStoreTest, ReplacesTheSameStep) {
  WriteThree();
  Write(1, "first again");
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kThird, kFirst));
  EXPECT_EQ(Contents(ModelOf(kFirst)), "first again");
  EXPECT_THAT(Names(root()), SizeIs(3));
}

TEST_F(CheckpointStoreTest, MakeNewestMovesACheckpointToTheEnd) {
  WriteThree();
  ASSERT_THAT(store_->MakeNewest(kFirst, R"({"returned":true})"), IsOk());
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kThird, kFirst));
  Reopen();
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kThird, kFirst));
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
  EXPECT_EQ(loaded.state, R"({"returned":true})");
  EXPECT_EQ(Contents(loaded.files.at("model.bin")), "first");
  Write(4, "fourth");
  EXPECT_EQ(store_->newest()->step, 4);
}

// After a restore, the same step and sequence have another state.
TEST_F(CheckpointStoreTest, ARestoreStartsANewLine) {
  WriteThree();
  ASSERT_THAT(store_->MakeNewest(kFirst, "{}"), IsOk());  // the fourth write
  const std::string again = std::string(kSecond) + "-line-4";
  Write(2, "second, the other way");
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kThird, kFirst, again));
  EXPECT_EQ(Contents(ModelOf(kSecond)), "second");
  Reopen();
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kThird, kFirst, again));
  Write(2, "the same state");
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kThird, kFirst, again));
  EXPECT_EQ(Contents(ModelOf(again)), "the same state");
  EXPECT_EQ(Contents(ModelOf(kSecond)), "second");
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->Read(again));
  EXPECT_EQ(loaded.info.step, 2);
  EXPECT_EQ(loaded.info.sequence, 4);
}

// Otherwise the origin of a version could name another state.
TEST_F(CheckpointStoreTest, DoesNotReuseNamesOfRemovedCheckpoints) {
  WriteThree();
  ASSERT_THAT(store_->MakeNewest(kFirst, "{}"), IsOk());
  ASSERT_THAT(store_->Retain({.keep = 1}), IsOk());
  EXPECT_THAT(Names(root()), ElementsAre(kFirst));
  Reopen();
  Write(2, "second, the other way");
  EXPECT_EQ(store_->newest()->name, std::string(kSecond) + "-line-4");
}

TEST_F(CheckpointStoreTest, CheckpointsOfOlderServersHaveNoLine) {
  for (const int64_t step : {1, 2}) {
    Manifest manifest;
    manifest.kind = "checkpoint";
    manifest.created = absl::Now();
    manifest.numbers = {{"step", step}, {"sequence", 2 * step}, {"serial", step}};
    ASSERT_THAT(WriteSealedDirectory(root(), step == 1 ? kFirst : kSecond, std::move(manifest),
                                     {FileOf("model.bin", "old")}),
                IsOk());
  }
  Reopen();
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kFirst, kSecond));
  EXPECT_THAT(store_->ReadNewest(), IsOk());
  Write(2, "new");
  EXPECT_THAT(NamesOf(store_->List()),
              ElementsAre(kFirst, kSecond, std::string(kSecond) + "-line-2"));
  EXPECT_EQ(Contents(ModelOf(kSecond)), "old");
  Reopen();
  Write(3, "newer");
  EXPECT_EQ(store_->newest()->name, std::string(kThird) + "-line-2");
}

TEST_F(CheckpointStoreTest, ReadsOnlyListedNames) {
  WriteThree();
  dir_.Write("outside/manifest.json", "{}");
  for (const std::string& name :
       {std::string("../outside"), std::string(), std::string("."), std::string(kFirst) + "/",
        std::string("/etc"), std::string("step-1-sequence-2"), std::string("a\0b", 3)}) {
    EXPECT_THAT(store_->Read(name),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("unknown checkpoint")))
        << name;
    EXPECT_THAT(store_->MakeNewest(name, "{}"),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("no")));
  }
  EXPECT_THAT(store_->Read(kFirst), IsOk());
}

TEST_F(CheckpointStoreTest, RetainsTheNewest) {
  WriteThree();
  ASSERT_THAT(store_->Retain({.keep = 0}), IsOk());
  ASSERT_THAT(store_->Retain({.keep = 3}), IsOk());
  EXPECT_THAT(store_->List(), SizeIs(3));
  ASSERT_THAT(store_->Retain({.keep = 2}), IsOk());
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kThird));
  ASSERT_THAT(store_->Retain({.keep = 1}), IsOk());
  EXPECT_THAT(Names(root()), ElementsAre(kThird));
  EXPECT_THAT(store_->Read(kFirst), StatusIs(absl::StatusCode::kNotFound, HasSubstr(kFirst)));
}

TEST_F(CheckpointStoreTest, RetainsWhatAHistoryStartsFrom) {
  for (int64_t step = 1; step <= 40; ++step) {
    Write(step, "model");
    ASSERT_THAT(store_->Retain({.keep = 2, .history = JournalPosition{0, 11}}), IsOk());
  }
  const std::vector<CheckpointInfo> kept = store_->List();
  ASSERT_THAT(kept, SizeIs(2 + kHistoryCheckpoints));
  // Operation 11 follows the state after operation 10.
  EXPECT_EQ(kept.front().sequence, 10);
  EXPECT_EQ(kept.back().sequence, 80);
  // A later start needs fewer.
  ASSERT_THAT(store_->Retain({.keep = 2, .history = JournalPosition{0, 75}}), IsOk());
  for (const CheckpointInfo& info : store_->List()) {
    EXPECT_GE(info.sequence, 74);
  }
  ASSERT_THAT(store_->Retain({.keep = 2}), IsOk());
  EXPECT_THAT(store_->List(), SizeIs(2));
}

TEST_F(CheckpointStoreTest, ARestoredStateStartsALine) {
  WriteThree();
  BRAID_ASSERT_OK_AND_ASSIGN(
      const CheckpointInfo restored,
      store_->WriteRestored(1, 2, "{}", {FileOf("model.bin", "another first")}));
  EXPECT_EQ(restored.line, 4);
  EXPECT_EQ(restored.name, absl::StrCat(kFirst, "-line-4"));
  Write(2, "after it");
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kFirst, kSecond, kThird, restored.name,
                                                   absl::StrCat(kSecond, "-line-4")));
  EXPECT_EQ(Contents(ModelOf(kFirst)), "first");
}

TEST_F(CheckpointStoreTest, CopiesACheckpointToAnotherStore) {
  ASSERT_THAT(store_->Share({FileOf("base.bin", "the base")}), IsOk());
  WriteThree();
  const std::string other = dir_.path() / "other";
  ASSERT_THAT(store_->CopyTo(kSecond, other), IsOk());
  EXPECT_EQ(LinksOf(kSecond, "model.bin"), 2) << "a link, no copy";
  ASSERT_THAT(store_->Retain({.keep = 1}), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CheckpointStore> copy,
                             CheckpointStore::Open(other, shared_.get()));
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, copy->ReadNewest());
  EXPECT_EQ(loaded.info.name, kSecond);
  EXPECT_EQ(Contents(loaded.files.at("model.bin")), "second");
  EXPECT_EQ(Contents(loaded.files.at("base.bin")), "the base");
  EXPECT_THAT(store_->CopyTo("unknown", other), StatusIs(absl::StatusCode::kNotFound, _));
}

TEST_F(CheckpointStoreTest, RetainIgnoresDamagedCheckpoints) {
  WriteThree();
  Truncate(ModelOf(kSecond));
  Reopen();
  ASSERT_THAT(store_->Retain({.keep = 1}), IsOk());
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kThird));
  EXPECT_TRUE(fs::exists(ModelOf(kSecond)));
}

// Damage.

TEST_F(CheckpointStoreTest, FallsBackToThePreviousCheckpoint) {
  WriteThree();
  Truncate(ModelOf(kThird));
  Reopen();
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
  EXPECT_EQ(loaded.info.name, kSecond);
  ASSERT_THAT(store_->damaged(), SizeIs(1));
  const DamagedCheckpoint damaged = store_->damaged().front();
  EXPECT_EQ(damaged.name, kThird);
  EXPECT_THAT(damaged.status, StatusIs(absl::StatusCode::kDataLoss,
                                       AllOf(HasSubstr(ModelOf(kThird).string()),
                                             HasSubstr("4 bytes"), HasSubstr("expected 5"))));
  EXPECT_THAT(store_->Read(kThird), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("4 bytes")));
  EXPECT_TRUE(fs::exists(ModelOf(kThird)));
}

TEST_F(CheckpointStoreTest, DetectsAFlippedByteInAFile) {
  WriteThree();
  FlipByte(ModelOf(kThird), 2);
  Reopen();
  EXPECT_THAT(store_->damaged(), IsEmpty());
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
  EXPECT_EQ(loaded.info.name, kSecond);
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kFirst, kSecond));
  EXPECT_THAT(store_->Read(kThird), StatusIs(absl::StatusCode::kDataLoss,
                                             AllOf(HasSubstr("model.bin"), HasSubstr("checksum"))));
}

TEST_F(CheckpointStoreTest, DetectsAFlippedByteInTheManifest) {
  WriteThree();
  const std::string text = Contents(ManifestOf(kThird));
  Put(ManifestOf(kThird), Replaced(text, "\"lr\": 0.5", "\"lr\": 0.7"));
  Reopen();
  ASSERT_THAT(store_->damaged(), SizeIs(1));
  EXPECT_THAT(store_->damaged().front().status,
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("manifest.json"), HasSubstr("checksum"))));
}

TEST_F(CheckpointStoreTest, IsDamagedWithoutItsManifestOrAFile) {
  WriteThree();
  fs::remove(ManifestOf(kThird));
  fs::remove(ModelOf(kSecond));
  Reopen();
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kFirst));
  ASSERT_THAT(store_->damaged(), SizeIs(2));
  EXPECT_THAT(store_->damaged()[0].status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.bin': missing")));
  EXPECT_THAT(store_->damaged()[1].status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("manifest.json': missing")));
}

TEST_F(CheckpointStoreTest, IsDamagedIfItsNameDoesNotMatchTheManifest) {
  WriteThree();
  fs::rename(root() / kThird, root() / "best");
  Reopen();
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kFirst, kSecond));
  EXPECT_THAT(store_->Read("best"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another checkpoint")));
}

TEST_F(CheckpointStoreTest, WritesADamagedCheckpointAgain) {
  WriteThree();
  Truncate(ModelOf(kThird));
  Reopen();
  Write(3, "third again");
  EXPECT_THAT(store_->damaged(), IsEmpty());
  EXPECT_THAT(store_->Read(kThird), IsOk());
}

TEST_F(CheckpointStoreTest, DoesNotSkipACheckpointOfALaterServer) {
  WriteThree();
  const std::string text = Contents(ManifestOf(kThird));
  Put(ManifestOf(kThird), Replaced(text, "\"format_version\": 2", "\"format_version\": 7"));
  Reopen();
  const auto later = StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr(kThird), HasSubstr("format_version 7 is newer")));
  EXPECT_THAT(store_->ReadNewest(), later);
  EXPECT_THAT(store_->Read(kThird), later);
  // A later checkpoint can still be read.
  EXPECT_THAT(store_->Read(kSecond), IsOk());
  Write(4, "fourth");
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
  EXPECT_EQ(loaded.info.step, 4);
}

TEST_F(CheckpointStoreTest, ReportsThatAllCheckpointsAreDamaged) {
  WriteThree();
  for (const char* name : {kFirst, kSecond, kThird}) {
    FlipByte(ModelOf(name), 0);
  }
  EXPECT_THAT(store_->ReadNewest(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("all 3 checkpoints are damaged")));
  EXPECT_THAT(store_->List(), IsEmpty());
}

// Failures while writing.

TEST_F(CheckpointStoreTest, AFullDiskChangesNothing) {
  Write(1, "first");
  {
    const FileSizeLimit limit(100'000);
    EXPECT_THAT(store_->Write(2, 4, "{}", {FileOf("model.bin", std::string(200'000, 'x'))}),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("bytes to"), HasSubstr("model.bin'"))));
    EXPECT_THAT(store_->Write(1, 2, "{}", {FileOf("model.bin", std::string(200'000, 'x'))}),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("model.bin'")));
  }
  EXPECT_THAT(Names(root()), ElementsAre(kFirst));
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kFirst));
  EXPECT_EQ(Contents(ModelOf(kFirst)), "first");
  EXPECT_THAT(store_->Read(kFirst), IsOk());
  Write(2, "second");
  EXPECT_THAT(store_->Read(kSecond), IsOk());
}

TEST_F(CheckpointStoreTest, AWriterThatFailsLeavesNothing) {
  const NewFile bad = {"model.bin", [](ByteSink*) { return absl::CancelledError("no more"); }};
  EXPECT_THAT(store_->Write(1, 2, "{}", {FileOf("a.bin", "a"), bad}),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("no more")));
  EXPECT_THAT(Names(root()), IsEmpty());
}

TEST_F(CheckpointStoreTest, RejectsInvalidNamesAndStates) {
  for (const char* name : {"", "..", "a/b", "manifest.json", ".hidden"}) {
    EXPECT_THAT(store_->Write(1, 2, "{}", {FileOf(name, "")}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("duplicate file name")))
        << name;
  }
  EXPECT_THAT(store_->Write(1, 2, "{}", {FileOf("a", ""), FileOf("a", "")}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("duplicate")));
  EXPECT_THAT(store_->Write(1, 2, "[]", {FileOf("a", "")}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a JSON object")));
  EXPECT_THAT(Names(root()), IsEmpty());
}

// The process ends in the middle of a file.
TEST_F(CheckpointStoreTest, ACrashDuringAWriteChangesNothing) {
  Write(1, "first");
  const NewFile deadly = {"model.bin", [](ByteSink* sink) {
                            sink->Write(std::string(2 << 20, 'x')).IgnoreError();
                            _exit(7);
                            return absl::OkStatus();
                          }};
  for (const int64_t step : {1, 2}) {
    EXPECT_EXIT(store_->Write(step, 2 * step, "{}", {deadly}).IgnoreError(),
                testing::ExitedWithCode(7), "");
    EXPECT_THAT(Names(root()), SizeIs(2));
    Reopen();
    EXPECT_THAT(Names(root()), ElementsAre(kFirst));
    BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
    EXPECT_EQ(Contents(loaded.files.at("model.bin")), "first");
  }
}

TEST_F(CheckpointStoreTest, ACrashDuringReplaceOrRemoveLeavesOneState) {
  WriteThree();
  fs::rename(root() / kThird, root() / (std::string(".old-") + kThird));
  fs::rename(root() / kFirst, root() / (std::string(".tmp-") + kFirst));
  Reopen();
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kSecond, kThird));
  EXPECT_THAT(Names(root()), SizeIs(2));
}

TEST_F(CheckpointStoreTest, FilesThatCannotBeSharedChangeNothing) {
  ASSERT_THAT(store_->Share({FileOf("base.bin", "the base")}), IsOk());
  {
    const FileSizeLimit limit(20);
    EXPECT_THAT(
        store_->Share({FileOf("other.bin", "other"), FileOf("large.bin", "larger than 20 bytes")}),
        IsOk());
    EXPECT_THAT(
        store_->Share({FileOf("other.bin", "other"), FileOf("large.bin", std::string(21, 'x'))}),
        StatusIs(absl::StatusCode::kResourceExhausted, _));
  }
  Write(1, "first");
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
  EXPECT_THAT(loaded.files, SizeIs(3));
  EXPECT_EQ(Contents(loaded.files.at("large.bin")), "larger than 20 bytes");
}

TEST_F(CheckpointStoreTest, DetectsADamagedSharedFile) {
  ASSERT_THAT(store_->Share({FileOf("base.bin", "the base")}), IsOk());
  WriteThree();
  FlipByte(root() / kFirst / "base.bin", 3);
  EXPECT_THAT(store_->ReadNewest(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("all 3 checkpoints are damaged")));
}

TEST_F(CheckpointStoreTest, AutomaticCheckpointsAreReplacedByTheNextOne) {
  const auto write = [&](int64_t step, bool automatic) {
    ASSERT_THAT(store_->Write(step, 2 * step, "{}", {}, automatic), IsOk());
    ASSERT_THAT(store_->Retain({.keep = 2}), IsOk());
  };
  write(1, false);
  write(2, true);
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kFirst, kSecond));
  Reopen();
  write(3, true);
  EXPECT_THAT(NamesOf(store_->List()), ElementsAre(kFirst, kThird));
  // One that was restored is kept like those that were asked for.
  ASSERT_THAT(store_->MakeNewest(kThird, "{}"), IsOk());
  ASSERT_THAT(store_->Write(4, 8, "{}", {}), IsOk());
  ASSERT_THAT(store_->Retain({.keep = 2}), IsOk());
  EXPECT_THAT(store_->List(), SizeIs(2));
  EXPECT_EQ(store_->List().front().name, kThird);
}

TEST_F(CheckpointStoreTest, ContinuesTheLineOfTheCheckpointThatReplacesADamagedOne) {
  ASSERT_THAT(store_->Write(1, 2, "{}", {}), IsOk());
  ASSERT_THAT(store_->Write(2, 4, "{}", {}), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo restored, store_->MakeNewest(kFirst, "{}"));
  EXPECT_GT(restored.line, 0);
  FlipByte(root() / kFirst / "manifest.json", 40);
  Reopen();
  BRAID_ASSERT_OK_AND_ASSIGN(const LoadedCheckpoint loaded, store_->ReadNewest());
  EXPECT_EQ(loaded.info.name, kSecond);
  EXPECT_EQ(loaded.info.line, 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const CheckpointInfo next, store_->Write(3, 6, "{}", {}));
  EXPECT_EQ(next.line, 0);
}

TEST_F(CheckpointStoreTest, ReportsADirectoryThatCannotBeCreated) {
  dir_.Write("file", "");
  EXPECT_THAT(CheckpointStore::Open(dir_.path() / "file", shared_.get()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("file'")));
}

}  // namespace
}  // namespace braid
