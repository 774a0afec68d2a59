#include "server/storage/journal.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/wait_for.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kHeaderBytes = 72;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() { Reopen(); }

  // Opens the journal again, like a restart.
  void Reopen(const std::string& description = "this process", int64_t line = 0) {
    journal_.reset();
    absl::StatusOr<std::unique_ptr<Journal>> journal =
        Journal::Open(root(), description, line, &pool_, history_);
    ASSERT_THAT(journal, IsOk());
    journal_ = *std::move(journal);
  }

  void Append(int64_t sequence, const std::string& body) {
    journal_->Append(1, sequence, [body](std::string* out) { out->append(body); });
  }
  absl::Status Sync() {
    return WaitFor<absl::Status>([&](auto done) { journal_->Sync(done); });
  }
  absl::Status AppendAndSync(int64_t sequence, const std::string& body) {
    Append(sequence, body);
    return Sync();
  }

  // Returns "sequence:body" of each record of the line.
  absl::StatusOr<std::vector<std::string>> Records(int64_t line = 0, int64_t after = 0) {
    std::vector<std::string> records;
    const absl::Status read =
        journal_->Read(line, after, [&](const JournalRecord& record, absl::string_view) {
          records.push_back(absl::StrCat(record.sequence, ":", record.body));
          return absl::OkStatus();
        });
    return read.ok() ? absl::StatusOr<std::vector<std::string>>(records) : read;
  }

  std::vector<std::string> MustRead(int64_t line = 0) {
    absl::StatusOr<std::vector<std::string>> records = Records(line);
    EXPECT_THAT(records, IsOk());
    return records.ok() ? *std::move(records) : std::vector<std::string>();
  }

  std::vector<fs::path> Segments() const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(root())) {
      paths.push_back(entry.path());
    }
    std::ranges::sort(paths);
    return paths;
  }
  std::string root() const { return dir_.path() / "journal"; }

  // Appends operations `first` to `last`, of about 1 MiB each, with a checkpoint after each.
  void AppendLarge(int64_t first, int64_t last) {
    for (int64_t sequence = first; sequence <= last; ++sequence) {
      ASSERT_THAT(AppendAndSync(sequence, std::string(1 << 20, 'x')), IsOk());
      journal_->StartSegment();
      journal_->Trim(sequence);
    }
    ASSERT_THAT(Sync(), IsOk());
  }

  const TempDir dir_;
  TaskPool pool_{"journal", 2};
  JournalHistory history_;  // of the next Reopen()
  std::unique_ptr<Journal> journal_;
};

TEST_F(JournalTest, ReadsWhatWasSyncedInOrder) {
  EXPECT_FALSE(fs::exists(root()));
  Append(1, "one");
  Append(2, std::string(100'000, 'x'));
  ASSERT_THAT(AppendAndSync(3, ""), IsOk());
  Reopen();
  ASSERT_THAT(AppendAndSync(4, "four"), IsOk());
  Reopen();
  EXPECT_THAT(MustRead(),
              ElementsAre("1:one", absl::StrCat("2:", std::string(100'000, 'x')), "3:", "4:four"));
}

TEST_F(JournalTest, WritesNotesAfterWhatTheyFollowIsDurable) {
  Append(1, "operation");
  journal_->AppendNote({2, 1, "result"});
  ASSERT_THAT(Sync(), IsOk());
  Reopen();
  EXPECT_THAT(MustRead(), ElementsAre("1:operation", "1:result"));
}

TEST_F(JournalTest, LeavesOutAnIncompleteRecordOfACrash) {
  ASSERT_THAT(AppendAndSync(1, "one"), IsOk());
  ASSERT_THAT(AppendAndSync(2, "two"), IsOk());
  journal_.reset();
  const fs::path segment = Segments().front();
  const auto whole = fs::file_size(segment);
  for (size_t lost = 1; lost < kHeaderBytes + 3; ++lost) {
    fs::resize_file(segment, whole - lost);
    Reopen();
    EXPECT_THAT(MustRead(), ElementsAre("1:one")) << lost;
  }
  // The next record replaces it, and nothing of it remains.
  ASSERT_THAT(AppendAndSync(2, "2"), IsOk());
  Reopen();
  EXPECT_THAT(MustRead(), ElementsAre("1:one", "2:2"));
}

TEST_F(JournalTest, AnIncompleteRecordDoesNotStayInFrontOfANewSegment) {
  ASSERT_THAT(AppendAndSync(1, "one"), IsOk());
  ASSERT_THAT(AppendAndSync(2, "two"), IsOk());
  journal_.reset();
  Truncate(Segments().front());
  Reopen("another process");
  EXPECT_THAT(MustRead(), ElementsAre("1:one"));
  ASSERT_THAT(AppendAndSync(2, "2"), IsOk());
  Reopen("another process");
  EXPECT_THAT(MustRead(), ElementsAre("1:one", "2:2"));
}

TEST_F(JournalTest, ReportsEachDamagedByteOfADurableRecord) {
  ASSERT_THAT(AppendAndSync(1, "one"), IsOk());
  ASSERT_THAT(AppendAndSync(2, "two"), IsOk());
  journal_.reset();
  const fs::path segment = Segments().front();
  const std::string intact = Contents(segment);
  // The last record is known to be durable only by what follows it.
  for (size_t byte = 0; byte < intact.size() - kHeaderBytes - 3; ++byte) {
    FlipByte(segment, byte);
    Reopen();
    EXPECT_THAT(Records(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(segment.string())))
        << byte;
    Put(segment, intact);
  }
}

TEST_F(JournalTest, ANoteShowsThatTheRecordBeforeItWasDurable) {
  Append(1, "one");
  ASSERT_THAT(Sync(), IsOk());
  journal_->AppendNote({2, 1, "result"});
  ASSERT_THAT(Sync(), IsOk());
  journal_.reset();
  const fs::path segment = Segments().front();
  const std::string intact = Contents(segment);
  const size_t body = intact.find("one");
  FlipByte(segment, body);
  Reopen();
  EXPECT_THAT(Records(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is damaged")));
}

TEST_F(JournalTest, ReportsAMissingSegment) {
  for (int64_t process = 1; process <= 3; ++process) {
    Reopen(absl::StrCat("process ", process));
    ASSERT_THAT(AppendAndSync(process, "body"), IsOk());
  }
  ASSERT_THAT(Segments(), SizeIs(3));
  fs::remove(Segments()[1]);
  Reopen();
  EXPECT_THAT(Records(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is missing")));
}

TEST_F(JournalTest, TellsWhichProcessWroteARecord) {
  ASSERT_THAT(AppendAndSync(1, ""), IsOk());
  Reopen("another process");
  ASSERT_THAT(AppendAndSync(2, ""), IsOk());
  std::vector<std::string> descriptions;
  ASSERT_THAT(journal_->Read(0, 0,
                             [&](const JournalRecord&, absl::string_view description) {
                               descriptions.emplace_back(description);
                               return absl::OkStatus();
                             }),
              IsOk());
  EXPECT_THAT(descriptions, ElementsAre("this process", "another process"));
}

TEST_F(JournalTest, ANewLineReplacesEarlierRecords) {
  ASSERT_THAT(AppendAndSync(1, "before"), IsOk());
  Append(2, "before");
  journal_->StartLine(7);
  Append(1, "after");
  ASSERT_THAT(Sync(), IsOk());
  EXPECT_THAT(Segments(), SizeIs(1));
  Reopen("this process", 7);
  EXPECT_THAT(MustRead(7), ElementsAre("1:after"));
}

TEST_F(JournalTest, ReportsRecordsOfALaterLine) {
  journal_->StartLine(7);
  ASSERT_THAT(AppendAndSync(1, "one"), IsOk());
  Reopen();
  EXPECT_THAT(Records(3), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("follow a restore")));
  EXPECT_THAT(MustRead(9), IsEmpty());
}

TEST_F(JournalTest, TrimsToWhatIsNeeded) {
  const std::string large(5 << 20, 'x');
  ASSERT_THAT(AppendAndSync(1, large), IsOk());
  journal_->StartSegment();
  ASSERT_THAT(AppendAndSync(2, "two"), IsOk());
  EXPECT_THAT(Segments(), SizeIs(2));
  journal_->Trim(1);
  ASSERT_THAT(Sync(), IsOk());
  EXPECT_THAT(Segments(), SizeIs(1));
  // A segment that is in use is emptied.
  journal_->Trim(2);
  ASSERT_THAT(AppendAndSync(3, "three"), IsOk());
  Reopen();
  EXPECT_THAT(MustRead(), ElementsAre("3:three"));
}

TEST_F(JournalTest, KeepsARecordThatCannotBeWrittenUntilItCan) {
  ASSERT_THAT(AppendAndSync(1, "one"), IsOk());
  {
    const FileSizeLimit limit(fs::file_size(Segments().front()) + kHeaderBytes + 10);
    EXPECT_THAT(AppendAndSync(2, std::string(100, 'x')),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("segment-000000001")));
    EXPECT_THAT(Sync(), StatusIs(absl::StatusCode::kResourceExhausted, _));
  }
  EXPECT_THAT(Sync(), IsOk());
  Reopen();
  EXPECT_THAT(MustRead(), ElementsAre("1:one", absl::StrCat("2:", std::string(100, 'x'))));
}

TEST_F(JournalTest, ANewLineForgetsRecordsThatCouldNotBeWritten) {
  ASSERT_THAT(AppendAndSync(1, "one"), IsOk());
  {
    const FileSizeLimit limit(fs::file_size(Segments().front()) + 1);
    EXPECT_FALSE(AppendAndSync(2, "two").ok());
    journal_->StartLine(7);
    EXPECT_THAT(Sync(), IsOk());
  }
  ASSERT_THAT(AppendAndSync(1, "again"), IsOk());
  Reopen("this process", 7);
  EXPECT_THAT(MustRead(7), ElementsAre("1:again"));
}

TEST_F(JournalTest, SyncsManyRecordsTogether) {
  std::vector<std::string> expected;
  for (int64_t sequence = 1; sequence <= 1000; ++sequence) {
    Append(sequence, "body");
    expected.push_back(absl::StrCat(sequence, ":body"));
  }
  ASSERT_THAT(Sync(), IsOk());
  Reopen();
  EXPECT_THAT(MustRead(), expected);
}

TEST_F(JournalTest, KeepsAHistoryOfSomeBytes) {
  history_.bytes = 4 << 20;
  Reopen();
  AppendLarge(1, 10);
  EXPECT_THAT(Segments(), SizeIs(4));
  EXPECT_EQ(journal_->history_start(), (JournalPosition{0, 7}));
  // Also those that a restart does not read.
  Reopen();
  EXPECT_EQ(journal_->history_start(), (JournalPosition{0, 7}));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> records, Records(0, 9));
  EXPECT_THAT(records, SizeIs(2));
  AppendLarge(11, 12);  // 11 continues the segment of 10
  EXPECT_THAT(Segments(), SizeIs(3));
  EXPECT_EQ(journal_->history_start(), (JournalPosition{0, 9}));
}

TEST_F(JournalTest, KeepsAHistoryOfSomeTime) {
  history_.age = absl::Hours(1);
  Reopen();
  ASSERT_THAT(AppendAndSync(1, std::string(5 << 20, 'x')), IsOk());
  journal_->StartSegment();
  ASSERT_THAT(AppendAndSync(2, "two"), IsOk());
  journal_->Trim(2);
  ASSERT_THAT(Sync(), IsOk());
  EXPECT_THAT(Segments(), SizeIs(2));
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(2);
  fs::last_write_time(Segments().front(), old);
  Reopen();
  ASSERT_THAT(Records(), IsOk());
  journal_->Trim(2);
  ASSERT_THAT(AppendAndSync(3, "three"), IsOk());
  EXPECT_EQ(journal_->history_start(), (JournalPosition{0, 2}));
  EXPECT_THAT(MustRead(), ElementsAre("2:two", "3:three"));
}

TEST_F(JournalTest, AHistoryKeepsEarlierLines) {
  history_.bytes = 1 << 20;
  Reopen();
  ASSERT_THAT(AppendAndSync(1, "one"), IsOk());
  journal_->StartLine(7);
  ASSERT_THAT(AppendAndSync(1, "again"), IsOk());
  journal_->Trim(1);
  ASSERT_THAT(Sync(), IsOk());
  EXPECT_EQ(journal_->history_start(), (JournalPosition{0, 1}));
  Reopen("this process", 7);
  EXPECT_THAT(MustRead(7), ElementsAre("1:again"));
  EXPECT_THAT(Segments(), SizeIs(2));
}

TEST_F(JournalTest, ASegmentInUseIsScannedUpToAnIncompleteRecord) {
  ASSERT_THAT(AppendAndSync(1, "one"), IsOk());
  ASSERT_THAT(AppendAndSync(2, "a longer body"), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<JournalSegment> segments, ListSegments(root()));
  ASSERT_THAT(segments, SizeIs(1));
  const auto scan = [&](int64_t most) {
    std::vector<std::string> found;
    EXPECT_THAT(ScanSegment(segments[0], most,
                            [&](const JournalRecord& record, int64_t) {
                              found.push_back(absl::StrCat(record.sequence, ":", record.body));
                              return absl::OkStatus();
                            }),
                IsOk());
    return found;
  };
  EXPECT_THAT(scan(1000), ElementsAre("1:one", "2:a longer body"));
  EXPECT_THAT(scan(8), ElementsAre("1:one", "2:a longer"));
  fs::resize_file(Segments().front(), fs::file_size(Segments().front()) - 1);
  EXPECT_THAT(scan(1000), ElementsAre("1:one"));
}

}  // namespace
}  // namespace braid
