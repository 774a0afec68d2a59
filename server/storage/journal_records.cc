#include "server/storage/journal_records.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/storage/checksum.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "BraidRec";
constexpr uint32_t kSegmentStart = 0;  // kind
constexpr int64_t kUnknownLine = -1;
constexpr char kPrefix[] = "segment-";
constexpr char kSuffix[] = ".journal";

struct Header {
  std::array<char, 8> magic;
  uint32_t kind = 0;
  uint32_t note = 0;
  int64_t bytes = 0;
  int64_t sequence = 0;
  int64_t durable = 0;
  std::array<char, 32> checksum;
};
static_assert(sizeof(Header) == 72);
constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(Header));

std::string RecordChecksum(const Header& header, absl::string_view body) {
  Checksum checksum;
  checksum.Add({reinterpret_cast<const char*>(&header), offsetof(Header, checksum)});
  checksum.Add(body);
  return checksum.Hex();
}

// Returns the header at `offset`, or nullopt if no record that fits into the file begins there.
absl::StatusOr<std::optional<Header>> ReadHeader(const InputFile& file, int64_t offset) {
  Header header;
  const int64_t left = file.bytes() - offset - kHeaderBytes;
  if (left < 0) {
    return std::nullopt;
  }
  BRAID_RETURN_IF_ERROR(file.Read(offset, &header, sizeof(header)));
  if (std::string_view(header.magic.data(), header.magic.size()) != kMagic || header.bytes < 0 ||
      header.bytes > left) {
    return std::nullopt;
  }
  return header;
}

// Reads at most `max_body` bytes of the body, and verifies the checksum if this is all of it.
absl::StatusOr<std::optional<FoundRecord>> ReadUpTo(const InputFile& file, int64_t offset,
                                                    int64_t max_body) {
  BRAID_ASSIGN_OR_RETURN(const std::optional<Header> header, ReadHeader(file, offset));
  if (!header) {
    return std::nullopt;
  }
  FoundRecord found{{header->kind, header->sequence,
                     std::string(static_cast<size_t>(std::min(header->bytes, max_body)), '\0'),
                     header->note != 0},
                    header->durable,
                    offset + kHeaderBytes + header->bytes};
  std::string& body = found.record.body;
  BRAID_RETURN_IF_ERROR(file.Read(offset + kHeaderBytes, body.data(), body.size()));
  if (std::cmp_equal(body.size(), header->bytes) &&
      RecordChecksum(*header, body) !=
          absl::string_view(header->checksum.data(), header->checksum.size())) {
    return std::nullopt;
  }
  return found;
}

std::optional<int64_t> SerialOf(absl::string_view name) {
  int64_t serial = 0;
  if (absl::ConsumePrefix(&name, kPrefix) && absl::ConsumeSuffix(&name, kSuffix) &&
      absl::SimpleAtoi(name, &serial)) {
    return serial;
  }
  return std::nullopt;
}

absl::Time LastWritten(const std::string& path) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(path, error);
  return error ? absl::Now() : absl::FromChrono(std::chrono::file_clock::to_sys(time));
}

absl::StatusOr<JournalSegment> ReadSegmentStart(const std::string& path, int64_t serial) {
  JournalSegment segment;
  segment.path = path;
  segment.serial = serial;
  segment.written = LastWritten(path);
  BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  segment.bytes = file.bytes();
  BRAID_ASSIGN_OR_RETURN(const std::optional<FoundRecord> start, ReadRecord(file, 0));
  if (!start || start->record.kind != kSegmentStart) {
    segment.line = kUnknownLine;
    segment.damage = DamagedRecord(path, 0);
    return segment;
  }
  segment.line = start->record.sequence;
  segment.description = start->record.body;
  segment.header_end = start->end;
  std::optional<Header> first;
  for (int64_t offset = start->end; !first || first->note != 0;
       offset += kHeaderBytes + first->bytes) {
    BRAID_ASSIGN_OR_RETURN(first, ReadHeader(file, offset));
    if (!first) {
      return segment;
    }
  }
  segment.first = first->sequence;
  return segment;
}

}  // namespace

std::string RecordHeader(const JournalRecord& record, int64_t durable) {
  Header header;
  std::memcpy(header.magic.data(), kMagic.data(), kMagic.size());
  header.kind = record.kind;
  header.note = record.is_note ? 1 : 0;
  header.bytes = static_cast<int64_t>(record.body.size());
  header.sequence = record.sequence;
  header.durable = durable;
  const std::string checksum = RecordChecksum(header, record.body);
  std::memcpy(header.checksum.data(), checksum.data(), header.checksum.size());
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

std::string SegmentStart(int64_t line, const std::string& description) {
  return absl::StrCat(RecordHeader({kSegmentStart, line, description}, /*durable=*/0), description);
}

std::string SegmentName(int64_t serial) {
  return absl::StrCat(kPrefix, absl::Dec(serial, absl::kZeroPad9), kSuffix);
}

absl::StatusOr<std::optional<FoundRecord>> ReadRecord(const InputFile& file, int64_t offset) {
  return ReadUpTo(file, offset, file.bytes());
}

absl::StatusOr<bool> WasDurable(const InputFile& file, int64_t offset) {
  constexpr int64_t kSearched = int64_t{1} << 20;  // at a time
  const auto overlap = static_cast<int64_t>(kMagic.size()) - 1;
  std::string piece;
  for (int64_t at = offset + 1; at < file.bytes(); at += kSearched) {
    piece.resize(static_cast<size_t>(std::min(kSearched + overlap, file.bytes() - at)));
    BRAID_RETURN_IF_ERROR(file.Read(at, piece.data(), piece.size()));
    for (size_t magic = piece.find(kMagic); magic != std::string::npos;
         magic = piece.find(kMagic, magic + 1)) {
      BRAID_ASSIGN_OR_RETURN(const std::optional<FoundRecord> found,
                             ReadRecord(file, at + static_cast<int64_t>(magic)));
      if (found && found->durable > offset) {
        return true;
      }
    }
  }
  return false;
}

absl::Status DamagedRecord(const std::string& path, int64_t offset) {
  return absl::DataLossError(
      absl::StrCat("'", path, "': the record at byte ", offset, " is damaged"));
}

absl::StatusOr<std::vector<JournalSegment>> ListSegments(const std::string& directory) {
  std::error_code error;
  std::vector<int64_t> serials;
  if (!fs::exists(directory, error)) {
    return std::vector<JournalSegment>();
  }
  for (fs::directory_iterator child(directory, error), end; !error && child != end;
       child.increment(error)) {
    if (const std::optional<int64_t> serial = SerialOf(child->path().filename().string())) {
      serials.push_back(*serial);
    }
  }
  if (error) {
    return FileError(error.value(), "list", directory);
  }
  std::ranges::sort(serials);
  std::vector<JournalSegment> segments;
  for (const int64_t serial : serials) {
    BRAID_ASSIGN_OR_RETURN(
        JournalSegment segment,
        ReadSegmentStart(absl::StrCat(directory, "/", SegmentName(serial)), serial));
    if (!segments.empty() && serial != segments.back().serial + 1) {
      segment.damage.Update(absl::DataLossError(absl::StrCat(
          "'", directory, "/", SegmentName(segments.back().serial + 1), "' is missing")));
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

absl::Status ScanSegment(
    const JournalSegment& segment, int64_t max_body,
    absl::FunctionRef<absl::Status(const JournalRecord&, int64_t offset)> use) {
  BRAID_RETURN_IF_ERROR(segment.damage);
  BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(segment.path));
  int64_t offset = segment.header_end;
  while (offset < file.bytes()) {
    BRAID_ASSIGN_OR_RETURN(const std::optional<FoundRecord> found,
                           ReadUpTo(file, offset, max_body));
    if (!found) {
      BRAID_ASSIGN_OR_RETURN(const bool was_durable, WasDurable(file, offset));
      return was_durable ? DamagedRecord(segment.path, offset) : absl::OkStatus();
    }
    BRAID_RETURN_IF_ERROR(use(found->record, offset));
    offset = found->end;
  }
  return absl::OkStatus();
}

}  // namespace braid
