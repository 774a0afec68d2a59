#include "server/tracking/event_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

constexpr absl::string_view kPrefix = "events.out.tfevents.";
constexpr absl::string_view kSuffix = ".braid";

// Fields of Event, Summary, Summary.Value and SessionLog.
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
constexpr int kSummaryValue = 1;
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kStatus = 1;
constexpr uint64_t kStart = 1;

// Wire types of protocol buffers.
constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kBytes = 2;
constexpr int kFixed32 = 5;

std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    }
    table[i] = crc;
  }
  return table;
}

uint32_t MaskedCrc(absl::string_view bytes) { return std::rotr(Crc32c(bytes), 15) + 0xA282EAD8U; }

// Appends the bytes of `number` in little-endian order.
template <typename Number>
void AppendFixed(Number number, std::string* out) {
  for (size_t i = 0; i < sizeof(Number); ++i) {
    out->push_back(static_cast<char>((number >> (8 * i)) & 0xFF));
  }
}

void AppendVarint(uint64_t number, std::string* out) {
  for (; number >= 0x80; number >>= 7) {
    out->push_back(static_cast<char>((number & 0x7F) | 0x80));
  }
  out->push_back(static_cast<char>(number));
}

void AppendTag(int field, int wire_type, std::string* out) {
  AppendVarint(static_cast<uint64_t>((field << 3) | wire_type), out);
}

void AppendBytes(int field, absl::string_view bytes, std::string* out) {
  AppendTag(field, kBytes, out);
  AppendVarint(bytes.size(), out);
  absl::StrAppend(out, bytes);
}

std::string EventAt(int64_t step, absl::Time time) {
  std::string event;
  AppendTag(kWallTime, kFixed64, &event);
  AppendFixed(std::bit_cast<uint64_t>(absl::ToDoubleSeconds(time - absl::UnixEpoch())), &event);
  AppendTag(kStep, kVarint, &event);
  AppendVarint(static_cast<uint64_t>(step), &event);
  return event;
}

void AppendRecord(absl::string_view event, std::string* out) {
  std::string length;
  AppendFixed(uint64_t{event.size()}, &length);
  absl::StrAppend(out, length);
  AppendFixed(MaskedCrc(length), out);
  absl::StrAppend(out, event);
  AppendFixed(MaskedCrc(event), out);
}

// Returns the largest number in the names of event files; 0 if there is none.
absl::StatusOr<int64_t> NewestNumber(const std::string& folder) {
  int64_t newest = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = file->path().filename();
    int64_t number = 0;
    if (absl::StartsWith(name, kPrefix) &&
        absl::SimpleAtoi(name.substr(kPrefix.size(), 10), &number)) {
      newest = std::max(newest, number);
    }
  }
  if (error) {
    return FileError(error.value(), "list", folder);
  }
  return newest;
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = MakeCrcTable();
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  }
  return ~crc;
}

absl::Status EventFile::Open(const std::string& folder, absl::Time now) {
  BRAID_ASSIGN_OR_RETURN(const int64_t newest, NewestNumber(folder));
  // Mostly the time, as TensorFlow's names have it.
  const int64_t number = std::max(absl::ToUnixSeconds(now), newest + 1);
  BRAID_ASSIGN_OR_RETURN(
      file_, TailFile::Open(absl::StrFormat("%s/%s%010d%s", folder, kPrefix, number, kSuffix)));
  size_ = 0;
  records_.clear();
  std::string event = EventAt(0, now);
  AppendBytes(kFileVersion, "brain.Event:2", &event);
  AppendRecord(event, &records_);
  header_bytes_ = records_.size();
  return absl::OkStatus();
}

void EventFile::AddRestart(int64_t step, absl::Time now) {
  std::string log;
  AppendTag(kStatus, kVarint, &log);
  AppendVarint(kStart, &log);
  std::string event = EventAt(step, now);
  AppendBytes(kSessionLog, log, &event);
  AppendRecord(event, &records_);
}

void EventFile::Add(const TrackedValues& values) {
  if (values.values.empty()) {
    return;
  }
  std::string summary;
  for (const TrackedValue& tracked : values.values) {
    std::string value;
    AppendBytes(kTag, tracked.name, &value);
    AppendTag(kSimpleValue, kFixed32, &value);
    AppendFixed(std::bit_cast<uint32_t>(static_cast<float>(tracked.value)), &value);
    AppendBytes(kSummaryValue, value, &summary);
  }
  std::string event = EventAt(values.step, values.time);
  AppendBytes(kSummary, summary, &event);
  AppendRecord(event, &records_);
}

absl::Status EventFile::Flush() {
  const absl::Status status = file_->Replace(size_, records_);
  if (status.ok()) {
    size_ += static_cast<int64_t>(records_.size());
    records_.clear();
  } else if (records_.size() > TailFile::kMaxUnwritten) {
    records_.resize(size_ == 0 ? header_bytes_ : 0);
  }
  return status;
}

}  // namespace braid
