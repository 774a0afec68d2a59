#include "server/storage/file_sink.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/checksum.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ChecksumTest, MatchesXxhsum) {
  EXPECT_EQ(ChecksumOf(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ChecksumOf("braid"), ChecksumOf(std::string("bra") + "id"));
  EXPECT_NE(ChecksumOf("braid"), ChecksumOf("braie"));
}

TEST(FileSinkTest, WritesPiecesOfAnySize) {
  const TempDir dir;
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create(dir.path() / "file"));
  std::string all;
  for (const size_t size : {0u, 1u, 1000u, 1'048'576u, 1'048'575u, 2u, 3'000'000u, 5u}) {
    const std::string piece(size, static_cast<char>('a' + size % 26));
    ASSERT_THAT(sink.Write(piece), IsOk());
    all += piece;
  }
  ASSERT_THAT(sink.Finish(), IsOk());
  EXPECT_TRUE(Contents(dir.path() / "file") == all);
  EXPECT_EQ(sink.bytes(), all.size());
  EXPECT_EQ(sink.checksum(), ChecksumOf(all));
}

TEST(FileSinkTest, TruncatesAnExistingFile) {
  const TempDir dir;
  dir.Write("file", "old and long");
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create(dir.path() / "file"));
  ASSERT_THAT(sink.Write("new"), IsOk());
  ASSERT_THAT(sink.Finish(), IsOk());
  EXPECT_EQ(Contents(dir.path() / "file"), "new");
}

TEST(FileSinkTest, ReportsAFileThatCannotBeCreated) {
  const TempDir dir;
  EXPECT_THAT(FileSink::Create(dir.path() / "missing" / "file"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing/file'")));
}

TEST(FileSinkTest, FinishReportsAFullDisk) {
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create("/dev/full"));
  ASSERT_THAT(sink.Write("small"), IsOk());
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted,
                             AllOf(HasSubstr("5 bytes to '/dev/full'"), HasSubstr("No space")));
  EXPECT_THAT(sink.Finish(), full);
  EXPECT_THAT(sink.Write("more"), full);
  EXPECT_THAT(sink.Finish(), full);
}

TEST(FileSinkTest, WriteReportsAFullDisk) {
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create("/dev/full"));
  EXPECT_THAT(sink.Write(std::string(2 << 20, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1048576 bytes")));
}

TEST(FileSinkTest, ReportsTheFileSizeLimitAsAFullDisk) {
  const TempDir dir;
  BRAID_ASSERT_OK_AND_ASSIGN(FileSink sink, FileSink::Create(dir.path() / "file"));
  const FileSizeLimit limit(4096);
  EXPECT_THAT(sink.Write(std::string(2 << 20, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("file'")));
}

}  // namespace
}  // namespace braid
