// Records in the files of a journal.
//
//   <directory>/segment-000000007.journal
//
// A segment is a sequence of records. Each has a header of 72 bytes and a body:
//
//   bytes   content
//   8       "BraidRec"
//   4       kind
//   4       1: a note (Journal::AppendNote()), else 0
//   8       number of bytes of the body
//   8       sequence
//   8       durable: size of the segment when it was last durable before this record was written
//   32      XXH3 checksum of the above and the body, in hexadecimal
//
// Numbers are little-endian. The first record of a segment has kind 0, the line of the segment's
// records as its sequence, and a description of the process that wrote it as its body.
//
// A crash may leave an incomplete record at the end of a segment; it was never reported as durable.
//
// A line is a history without restores: a trainer that restores a checkpoint starts another one
// (checkpoint_store.h).
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/storage/input_file.h"

namespace braid {

struct JournalRecord {
  uint32_t kind = 0;  // 0: start of a segment
  int64_t sequence = 0;
  std::string body;
  bool is_note = false;
};

// Position of a record. Ordered by line, then by sequence.
struct JournalPosition {
  int64_t line = 0;
  int64_t sequence = 0;
  auto operator<=>(const JournalPosition&) const = default;
};

// Limits of the records that Journal::Trim() keeps although no restart needs them. It deletes a
// segment when either limit is reached. 0: no limit. If both are 0, no history is kept.
struct JournalHistory {
  int64_t bytes = 0;   // limit of the size of the newer segments
  absl::Duration age;  // limit of the time since the last write
  bool kept() const { return bytes > 0 || age > absl::ZeroDuration(); }
};

// A record and its place in the segment.
struct FoundRecord {
  JournalRecord record;
  int64_t durable = 0;
  int64_t end = 0;
};

// A file of a journal.
struct JournalSegment {
  std::string path;
  int64_t serial = 0;
  int64_t line = 0;
  std::string description;
  int64_t first = 0;       // sequence of the first record that is no note; 0: none
  int64_t header_end = 0;  // size of the record that starts the segment
  int64_t bytes = 0;
  absl::Time written;     // time of the last write
  absl::Status damage{};  // DATA_LOSS: the start is damaged, or the segment before it is missing
};

// Returns the header of `record`, which precedes its body.
std::string RecordHeader(const JournalRecord& record, int64_t durable);
// Returns the record that starts a segment.
std::string SegmentStart(int64_t line, const std::string& description);
std::string SegmentName(int64_t serial);

// Returns the record at `offset`, or nullopt if there is no intact one.
absl::StatusOr<std::optional<FoundRecord>> ReadRecord(const InputFile& file, int64_t offset);
// Returns whether a later record shows that the damaged one at `offset` was durable.
absl::StatusOr<bool> WasDurable(const InputFile& file, int64_t offset);
absl::Status DamagedRecord(const std::string& path, int64_t offset);

// Returns the segments in `directory`, the oldest first. A missing directory has none.
absl::StatusOr<std::vector<JournalSegment>> ListSegments(const std::string& directory);

// Calls `use` for each record of the segment, which may be in use, with the record's offset, until
// `use` fails. Skips an incomplete record at the end. Reads at most `max_body` bytes of each body,
// and does not verify the checksums of longer ones. DATA_LOSS naming file and byte if a durable
// record is damaged.
absl::Status ScanSegment(const JournalSegment& segment, int64_t max_body,
                         absl::FunctionRef<absl::Status(const JournalRecord&, int64_t offset)> use);

}  // namespace braid
