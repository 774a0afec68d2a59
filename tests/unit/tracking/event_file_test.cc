#include "server/tracking/event_file.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

// Returns the events of a file, whose checksums it checks.
std::vector<std::string> Events(const std::string& bytes) {
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    const auto checksum = [&](size_t begin) {
      uint32_t crc = 0;
      std::memcpy(&crc, bytes.data() + begin, sizeof(crc));
      crc -= 0xA282EAD8U;
      return (crc << 15) | (crc >> 17);
    };
    EXPECT_EQ(checksum(at + 8), Crc32c(absl::string_view(bytes).substr(at, 8)));
    events.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(checksum(at + 12 + length), Crc32c(events.back()));
    at += 16 + length;
  }
  return events;
}

TEST(EventFile, ChecksumsAreCrc32c) {
  EXPECT_EQ(Crc32c(""), 0U);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283U);            // the check value
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
}

TEST(EventFile, WritesTheVersionTheRestartAndTheValues) {
  const TempDir folder;
  EventFile file;
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  ASSERT_THAT(file.Open(folder.path(), now), IsOk());
  file.AddRestart(301, now);
  file.Add({301, now, {{"loss", 0.5}}});
  ASSERT_THAT(file.Flush(), IsOk());
  const std::vector<std::string> events =
      Events(Contents(folder.path() / "events.out.tfevents.1700000000.braid"));
  ASSERT_EQ(events.size(), 3U);
  const std::string time("\x09\x00\x00\x00\x40\xFC\x54\xD9\x41", 9);
  EXPECT_EQ(events[0], time + std::string("\x10\x00\x1A\x0D", 4) + "brain.Event:2");
  EXPECT_EQ(events[1], time + "\x10\xAD\x02\x3A\x02\x08\x01");
  EXPECT_EQ(events[2], time + "\x10\xAD\x02\x2A\x0D\x0A\x0B\x0A\x04loss\x15" +
                           std::string("\x00\x00\x00\x3F", 4));
}

TEST(EventFile, NamesIncreaseIfTheClockDoesNot) {
  const TempDir folder;
  for (const int64_t seconds : {1000, 1000, 500}) {
    EventFile file;
    ASSERT_THAT(file.Open(folder.path(), absl::FromUnixSeconds(seconds)), IsOk());
  }
  for (const char* number : {"0000001000", "0000001001", "0000001002"}) {
    EXPECT_TRUE(std::filesystem::exists(folder.path() /
                                        absl::StrCat("events.out.tfevents.", number, ".braid")))
        << number;
  }
}

TEST(EventFile, KeepsRecordsThatAFullDiskRejectsForTheNextFlush) {
  const TempDir folder;
  EventFile file;
  ASSERT_THAT(file.Open(folder.path(), absl::FromUnixSeconds(1000)), IsOk());
  file.Add({1, absl::FromUnixSeconds(1000), {{"loss", 0.5}}});
  {
    const FileSizeLimit full(30);
    EXPECT_TRUE(absl::IsResourceExhausted(file.Flush()));
  }
  const std::filesystem::path path = folder.path() / "events.out.tfevents.0000001000.braid";
  EXPECT_EQ(Contents(path), "");  // no part of a record
  ASSERT_THAT(file.Flush(), IsOk());
  EXPECT_EQ(Events(Contents(path)).size(), 2U);
}

}  // namespace
}  // namespace braid
