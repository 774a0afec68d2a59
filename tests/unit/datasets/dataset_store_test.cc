#include "server/datasets/dataset_store.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/manual_clock.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Files = std::map<std::string, std::string>;
using Outcome = DatasetStore::Outcome;

DatasetManifest ManifestOf(const std::string& name, const Files& files) {
  DatasetManifest manifest{.dataset = name, .files = {}};
  for (const auto& [path, text] : files) {
    manifest.files.push_back({path, static_cast<int64_t>(text.size()), Sha256(text)});
  }
  return manifest;
}

class DatasetStoreTest : public ::testing::Test {
 protected:
  DatasetStoreTest() {
    clock_.Advance(absl::Now() - absl::UnixEpoch());  // files have real times
    Reopen();
  }

  // Opens the directory again, as a restarted server does.
  void Reopen(int64_t quota = 0) {
    store_.reset();
    auto store = DatasetStore::Open({Root(), quota, &clock_});
    ASSERT_THAT(store, IsOk());
    store_ = *std::move(store);
  }

  std::string Root() const { return dir_.path() / "sets"; }
  fs::path Staging(const std::string& id) const { return fs::path(Root()) / ".braid/uploads" / id; }
  std::vector<std::string> Uploads() const { return Names(fs::path(Root()) / ".braid/uploads"); }

  std::shared_ptr<DatasetUpload> Begin(const DatasetManifest& manifest, bool overwrite = false) {
    const auto started = store_->Start(manifest, overwrite);
    EXPECT_THAT(started, IsOk());
    auto upload = store_->Continue(started->upload);
    EXPECT_THAT(upload, IsOk());
    return *std::move(upload);
  }

  // Uploads the dataset in pieces of 3 bytes.
  absl::StatusOr<Outcome> Put(const std::string& name, const Files& files, bool overwrite = false) {
    const DatasetManifest manifest = ManifestOf(name, files);
    BRAID_ASSIGN_OR_RETURN(const DatasetStore::Started started, store_->Start(manifest, overwrite));
    if (started.complete) {
      return Outcome::kUnchanged;
    }
    BRAID_ASSIGN_OR_RETURN(const auto upload, store_->Continue(started.upload));
    int64_t number = 0;
    for (const auto& [path, text] : files) {
      for (size_t at = static_cast<size_t>(upload->Received()[static_cast<size_t>(number)]);
           at < text.size(); at += 3) {
        BRAID_RETURN_IF_ERROR(upload->Append(number, static_cast<int64_t>(at), text.substr(at, 3)));
      }
      ++number;
    }
    return store_->Commit(upload.get());
  }

  std::string Stored(const std::string& path) const { return Contents(fs::path(Root()) / path); }

  const TempDir dir_;
  ManualClock clock_;
  std::unique_ptr<DatasetStore> store_;
};

TEST_F(DatasetStoreTest, StoresAFile) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Outcome outcome, Put("rows.csv", {{"", "x,y\n1,2\n"}}));
  EXPECT_EQ(outcome, Outcome::kStored);
  EXPECT_EQ(Stored("rows.csv"), "x,y\n1,2\n");
  EXPECT_THAT(Uploads(), IsEmpty());
  EXPECT_EQ(store_->space().used(), 8);
}

TEST_F(DatasetStoreTest, StoresAFolderWithSubfoldersAndEmptyFiles) {
  ASSERT_THAT(Put("set", {{"a.npy", "aaaa"}, {"b/c.npy", "c"}, {"empty.npy", ""}}), IsOk());
  EXPECT_EQ(Stored("set/a.npy"), "aaaa");
  EXPECT_EQ(Stored("set/b/c.npy"), "c");
  EXPECT_TRUE(fs::is_empty(fs::path(Root()) / "set/empty.npy"));
}

TEST_F(DatasetStoreTest, ShowsNothingUntilCommit) {
  const auto upload = Begin(ManifestOf("set", {{"a", "aaaa"}}));
  ASSERT_THAT(upload->Append(0, 0, "aaaa"), IsOk());
  EXPECT_THAT(Names(Root()), ElementsAre(".braid"));
  ASSERT_THAT(store_->Commit(upload.get()), IsOk());
  EXPECT_THAT(Names(Root()), UnorderedElementsAre(".braid", "set"));
}

TEST_F(DatasetStoreTest, ContinuesAnUploadAfterARestart) {
  const Files files = {{"a", "aaaa"}, {"b", "bbbb"}, {"c", "cc"}};
  const auto upload = Begin(ManifestOf("set", files));
  ASSERT_THAT(upload->Append(0, 0, "aaaa"), IsOk());
  ASSERT_THAT(upload->Append(1, 0, "b"), IsOk());
  Reopen();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto started, store_->Start(ManifestOf("set", files), false));
  EXPECT_THAT(started.received, ElementsAre(4, 1, 0));
  EXPECT_EQ(store_->space().used(), 5);
  ASSERT_THAT(Put("set", files), IsOk());
  EXPECT_EQ(Stored("set/b"), "bbbb");
}

TEST_F(DatasetStoreTest, VerifiesCompleteFilesAfterTheMachineRestarted) {
  const Files files = {{"a", "aaaa"}, {"b", "bbbb"}};
  const DatasetManifest manifest = ManifestOf("set", files);
  const auto upload = Begin(manifest);
  ASSERT_THAT(upload->Append(0, 0, "aaaa"), IsOk());
  ASSERT_THAT(upload->Append(1, 0, "bbbb"), IsOk());
  const fs::path staging = Staging(UploadIdOf(manifest));
  FlipByte(staging / "data/a", 2);
  braid::Put(staging / "verified", "another boot\n0\n1\n");
  Reopen();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto started, store_->Start(manifest, false));
  EXPECT_THAT(started.received, ElementsAre(0, 4));
}

TEST_F(DatasetStoreTest, RefusesWrongPositionsAndSizes) {
  const auto upload = Begin(ManifestOf("set", {{"a", "aaaa"}, {"b", "bb"}}));
  EXPECT_THAT(upload->Append(2, 0, "x"), RefusesField("file", HasSubstr("2 (expected 0 to 1)")));
  EXPECT_THAT(upload->Append(-1, 0, "x"), RefusesField("file", HasSubstr("-1")));
  EXPECT_THAT(upload->Append(0, 1, "x"),
              RefusesField("offset", HasSubstr("1 in 'a' (expected 0)")));
  ASSERT_THAT(upload->Append(0, 0, "aa"), IsOk());
  EXPECT_THAT(upload->Append(0, 0, "aa"), RefusesField("offset", HasSubstr("(expected 2)")));
  EXPECT_THAT(upload->Append(1, 0, "bb"),
              RefusesField("file", HasSubstr("1 before file 0, 'a', is complete")));
  EXPECT_THAT(upload->Append(0, 2, "aaa"), RefusesField("data", HasSubstr("(expected at most 2)")));
  EXPECT_THAT(store_->Commit(upload.get()), RefusesField("data", HasSubstr("2 of 4 bytes of 'a'")));
}

TEST_F(DatasetStoreTest, StartsAFileAgainIfItsChecksumDiffers) {
  const DatasetManifest manifest = ManifestOf("set", {{"a", "aaaa"}});
  const auto upload = Begin(manifest);
  EXPECT_THAT(upload->Append(0, 0, "aaab"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("files[0].sha256: 'a'")));
  EXPECT_THAT(upload->Received(), ElementsAre(0));
  EXPECT_EQ(store_->space().used(), 0);
  ASSERT_THAT(upload->Append(0, 0, "aaaa"), IsOk());
  EXPECT_THAT(store_->Commit(upload.get()), IsOk());
}

TEST_F(DatasetStoreTest, PuttingAnEqualDatasetChangesNothing) {
  ASSERT_THAT(Put("set", {{"a", "aaaa"}}), IsOk());
  EXPECT_TRUE(store_->Start(ManifestOf("set", {{"a", "aaaa"}}), false)->complete);
  EXPECT_TRUE(store_->Start(ManifestOf("set", {{"a", "aaaa"}}), true)->complete);
  Reopen();
  EXPECT_TRUE(store_->Start(ManifestOf("set", {{"a", "aaaa"}}), false)->complete);
  EXPECT_THAT(Uploads(), IsEmpty());
}

TEST_F(DatasetStoreTest, ComparesFilesThatWereWrittenByOthers) {
  fs::create_directories(fs::path(Root()) / "set");
  braid::Put(fs::path(Root()) / "set/a", "aaaa");
  EXPECT_TRUE(store_->Start(ManifestOf("set", {{"a", "aaaa"}}), false)->complete);
  EXPECT_THAT(store_->Start(ManifestOf("set", {{"a", "aaab"}}), false),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'set'")));
}

TEST_F(DatasetStoreTest, DetectsThatAStoredFileWasChanged) {
  ASSERT_THAT(Put("set", {{"a", "aaaa"}}), IsOk());
  braid::Put(fs::path(Root()) / "set/a", "bbbb");
  fs::last_write_time(fs::path(Root()) / "set/a",
                      fs::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_THAT(store_->Start(ManifestOf("set", {{"a", "aaaa"}}), false),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'set'")));
  EXPECT_TRUE(store_->Start(ManifestOf("set", {{"a", "bbbb"}}), false)->complete);
}

TEST_F(DatasetStoreTest, ReplacesADatasetOnlyWithOverwrite) {
  ASSERT_THAT(Put("set", {{"a", "aaaa"}}), IsOk());
  EXPECT_THAT(Put("set", {{"b", "bb"}}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("`overwrite`")));
  BRAID_ASSERT_OK_AND_ASSIGN(const Outcome outcome, Put("set", {{"b", "bb"}}, true));
  EXPECT_EQ(outcome, Outcome::kReplaced);
  EXPECT_THAT(Names(fs::path(Root()) / "set"), ElementsAre("b"));
  EXPECT_EQ(store_->space().used(), 2);
}

TEST_F(DatasetStoreTest, ReplacesAFileByAFolderAndBack) {
  ASSERT_THAT(Put("set", {{"", "text"}}), IsOk());
  ASSERT_THAT(Put("set", {{"b", "bb"}}, true), IsOk());
  EXPECT_EQ(Stored("set/b"), "bb");
  ASSERT_THAT(Put("set", {{"", "other"}}, true), IsOk());
  EXPECT_EQ(Stored("set"), "other");
  ASSERT_THAT(Put("set", {{"", "third"}}, true), IsOk());
  EXPECT_EQ(Stored("set"), "third");
  EXPECT_EQ(store_->space().used(), 5);
}

TEST_F(DatasetStoreTest, OneOfTwoUploadsOfANameWins) {
  const auto first = Begin(ManifestOf("set", {{"a", "aaaa"}}));
  const auto second = Begin(ManifestOf("set", {{"b", "bb"}}));
  ASSERT_THAT(first->Append(0, 0, "aaaa"), IsOk());
  ASSERT_THAT(second->Append(0, 0, "bb"), IsOk());
  ASSERT_THAT(store_->Commit(second.get()), IsOk());
  EXPECT_THAT(store_->Commit(first.get()),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'set'")));
  EXPECT_EQ(Stored("set/b"), "bb");
  EXPECT_THAT(Uploads(), IsEmpty());
}

TEST_F(DatasetStoreTest, ALaterCallTakesOverAnUpload) {
  const DatasetManifest manifest = ManifestOf("set", {{"a", "aaaa"}});
  const auto first = Begin(manifest);
  ASSERT_THAT(first->Append(0, 0, "aa"), IsOk());
  const auto second = Begin(manifest);
  EXPECT_THAT(first->Append(0, 2, "aa"),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("another call continues")));
  ASSERT_THAT(second->Append(0, 2, "aa"), IsOk());
  EXPECT_THAT(store_->Commit(second.get()), IsOk());
}

TEST_F(DatasetStoreTest, OnlyTheLastStartMayWrite) {
  const DatasetManifest manifest = ManifestOf("set", {{"a", "aaaa"}});
  BRAID_ASSERT_OK_AND_ASSIGN(const auto first, store_->Start(manifest, false));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto second, store_->Start(manifest, false));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto upload, store_->Continue(second.upload));
  ASSERT_THAT(upload->Append(0, 0, "aa"), IsOk());
  const auto aborted =
      StatusIs(absl::StatusCode::kAborted, HasSubstr("another call continues the upload of 'set'"));
  EXPECT_THAT(store_->Continue(first.upload), aborted);
  ASSERT_THAT(upload->Append(0, 2, "a"), IsOk());
  Reopen();
  EXPECT_THAT(store_->Continue(first.upload), aborted);
  EXPECT_THAT(store_->Continue(UploadIdOf(manifest)), aborted);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto rest, store_->Continue(second.upload));
  ASSERT_THAT(rest->Append(0, 3, "a"), IsOk());
  ASSERT_THAT(store_->Commit(rest.get()), IsOk());
  EXPECT_THAT(store_->Continue(first.upload),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no upload")));
  EXPECT_TRUE(store_->Start(manifest, false)->complete);
}

TEST_F(DatasetStoreTest, RefusesMoreThanTheQuota) {
  Reopen(10);
  ASSERT_THAT(Put("one", {{"a", "123456"}}), IsOk());
  EXPECT_THAT(store_->Start(ManifestOf("two", {{"a", "12345"}}), false),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("5 more bytes"), HasSubstr("use 6 bytes"),
                             HasSubstr("at most 10"), HasSubstr("--dataset_quota"))));
  EXPECT_THAT(Uploads(), IsEmpty());
  EXPECT_THAT(Put("two", {{"a", "1234"}}), IsOk());
  ASSERT_THAT(store_->Delete("one"), IsOk());
  EXPECT_THAT(Put("three", {{"a", "123456"}}), IsOk());
}

TEST_F(DatasetStoreTest, ChecksTheQuotaDuringUploads) {
  Reopen(10);
  const auto first = Begin(ManifestOf("one", {{"a", "123456"}}));
  const auto second = Begin(ManifestOf("two", {{"a", "123456"}}));
  ASSERT_THAT(first->Append(0, 0, "123456"), IsOk());
  EXPECT_THAT(second->Append(0, 0, "123456"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 10")));
  store_->Discard(second.get());
  EXPECT_THAT(store_->Commit(first.get()), IsOk());
  EXPECT_THAT(Uploads(), IsEmpty());
}

TEST_F(DatasetStoreTest, AFullDiskIsAnErrorAndLeavesNothing) {
  const auto upload = Begin(ManifestOf("set", {{"a", std::string(9000, 'a')}}));
  {
    const FileSizeLimit limit(5000);
    EXPECT_THAT(upload->Append(0, 0, std::string(9000, 'a')),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("data/a")));
  }
  store_->Discard(upload.get());
  EXPECT_THAT(Uploads(), IsEmpty());
  EXPECT_EQ(store_->space().used(), 0);
}

TEST_F(DatasetStoreTest, RemovesUploadsThatNobodyContinues) {
  const DatasetManifest manifest = ManifestOf("set", {{"a", "aaaa"}});
  ASSERT_THAT(Begin(manifest)->Append(0, 0, "aa"), IsOk());
  clock_.Advance(DatasetStore::kUploadLifetime - absl::Minutes(1));
  store_->RemoveExpired();
  EXPECT_THAT(Uploads(), ElementsAre(UploadIdOf(manifest)));
  clock_.Advance(absl::Minutes(2));
  store_->RemoveExpired();
  EXPECT_THAT(Uploads(), IsEmpty());
  EXPECT_THAT(store_->Continue(UploadIdOf(manifest)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("StartDatasetUpload")));
}

TEST_F(DatasetStoreTest, KeepsAnOldUploadThatACallContinues) {
  const auto upload = Begin(ManifestOf("set", {{"a", "aaaa"}}));
  clock_.Advance(2 * DatasetStore::kUploadLifetime);
  store_->RemoveExpired();
  ASSERT_THAT(upload->Append(0, 0, "aaaa"), IsOk());
  EXPECT_THAT(store_->Commit(upload.get()), IsOk());
}

TEST_F(DatasetStoreTest, DeletesADataset) {
  ASSERT_THAT(Put("set", {{"a", "aaaa"}}), IsOk());
  ASSERT_THAT(store_->Delete("set"), IsOk());
  EXPECT_THAT(Names(Root()), ElementsAre(".braid"));
  EXPECT_EQ(store_->space().used(), 0);
  EXPECT_THAT(store_->Delete("set"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no dataset 'set'")));
  EXPECT_THAT(store_->Delete("../sets"), RefusesField("dataset", HasSubstr("'../sets'")));
  EXPECT_THAT(store_->Delete(".braid"), RefusesField("dataset", HasSubstr("'.braid'")));
}

TEST_F(DatasetStoreTest, ReadersKeepFilesThatAreReplaced) {
  ASSERT_THAT(Put("set", {{"a", "aaaa"}}), IsOk());
  std::ifstream reader(fs::path(Root()) / "set/a");
  ASSERT_THAT(Put("set", {{"a", "bbbb"}}, true), IsOk());
  std::string text;
  reader >> text;
  EXPECT_EQ(text, "aaaa");
}

TEST_F(DatasetStoreTest, OnlyOneServerUsesTheDirectory) {
  EXPECT_THAT(DatasetStore::Open({Root(), 0, &clock_}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another server")));
}

}  // namespace
}  // namespace braid
