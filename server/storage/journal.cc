#include "server/storage/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/storage/checksum.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "BraidRec";
constexpr uint32_t kSegmentStart = 0;  // kind of a segment's first record
constexpr int64_t kUnknownLine = -1;
constexpr char kPrefix[] = "segment-";
constexpr char kSuffix[] = ".journal";
// StartSegment() ignores smaller segments.
constexpr int64_t kLargeSegment = int64_t{4} << 20;

struct Header {
  std::array<char, 8> magic;
  uint32_t kind = 0;
  uint32_t zero = 0;
  int64_t bytes = 0;
  int64_t sequence = 0;
  int64_t durable = 0;
  std::array<char, 32> checksum;
};
static_assert(sizeof(Header) == 72);

std::string RecordChecksum(const Header& header, absl::string_view body) {
  Checksum checksum;
  checksum.Add({reinterpret_cast<const char*>(&header), offsetof(Header, checksum)});
  checksum.Add(body);
  return checksum.Hex();
}

Header MakeHeader(const JournalRecord& record, int64_t durable) {
  Header header;
  std::memcpy(header.magic.data(), kMagic.data(), kMagic.size());
  header.kind = record.kind;
  header.bytes = static_cast<int64_t>(record.body.size());
  header.sequence = record.sequence;
  header.durable = durable;
  const std::string checksum = RecordChecksum(header, record.body);
  std::memcpy(header.checksum.data(), checksum.data(), header.checksum.size());
  return header;
}

std::string Encode(const JournalRecord& record) {
  const Header header = MakeHeader(record, /*durable=*/0);
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&header), sizeof(header)),
                      record.body);
}

// A record and its place in the segment.
struct Found {
  JournalRecord record;
  int64_t durable = 0;
  int64_t end = 0;
};

// Returns the record at `offset`, or nullopt if there is no intact one.
absl::StatusOr<std::optional<Found>> ReadRecord(const InputFile& file, int64_t offset) {
  Header header;
  const auto left = file.bytes() - offset - static_cast<int64_t>(sizeof(header));
  if (left < 0) {
    return std::nullopt;
  }
  BRAID_RETURN_IF_ERROR(file.Read(offset, &header, sizeof(header)));
  if (std::string_view(header.magic.data(), header.magic.size()) != kMagic || header.bytes < 0 ||
      header.bytes > left) {
    return std::nullopt;
  }
  Found found{{header.kind, header.sequence, std::string(static_cast<size_t>(header.bytes), '\0')},
              header.durable,
              offset + static_cast<int64_t>(sizeof(header)) + header.bytes};
  std::string& body = found.record.body;
  BRAID_RETURN_IF_ERROR(
      file.Read(offset + static_cast<int64_t>(sizeof(header)), body.data(), body.size()));
  if (RecordChecksum(header, body) !=
      absl::string_view(header.checksum.data(), header.checksum.size())) {
    return std::nullopt;
  }
  return found;
}

// Returns whether a record after `offset`, where a damaged one begins, calls that one durable.
absl::StatusOr<bool> WasDurable(const InputFile& file, int64_t offset) {
  constexpr int64_t kSearched = int64_t{1} << 20;  // at a time
  const auto overlap = static_cast<int64_t>(kMagic.size()) - 1;
  std::string piece;
  for (int64_t at = offset + 1; at < file.bytes(); at += kSearched) {
    piece.resize(static_cast<size_t>(std::min(kSearched + overlap, file.bytes() - at)));
    BRAID_RETURN_IF_ERROR(file.Read(at, piece.data(), piece.size()));
    for (size_t magic = piece.find(kMagic); magic != std::string::npos;
         magic = piece.find(kMagic, magic + 1)) {
      BRAID_ASSIGN_OR_RETURN(const std::optional<Found> found,
                             ReadRecord(file, at + static_cast<int64_t>(magic)));
      if (found && found->durable > offset) {
        return true;
      }
    }
  }
  return false;
}

absl::Status Damaged(const std::string& path, int64_t offset) {
  return absl::DataLossError(
      absl::StrCat("'", path, "': the record at byte ", offset, " is damaged"));
}

absl::Status WriteAt(int file, const std::string& path, int64_t offset, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file, bytes.data(), bytes.size(), offset);
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += written;
    } else if (errno != EINTR) {
      return FileError(errno, absl::StrCat("write ", bytes.size(), " bytes to"), path);
    }
  }
  return absl::OkStatus();
}

// Removes what the file has beyond `bytes`.
absl::Status Shorten(const std::string& path, int64_t bytes) {
  std::error_code error;
  if (std::cmp_equal(fs::file_size(path, error), bytes)) {
    return absl::OkStatus();
  }
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0 || ftruncate(file.get(), bytes) != 0 || fdatasync(file.get()) != 0) {
    return FileError(errno, "truncate", path);
  }
  return absl::OkStatus();
}

std::optional<int64_t> SerialOf(absl::string_view name) {
  int64_t serial = 0;
  if (absl::ConsumePrefix(&name, kPrefix) && absl::ConsumeSuffix(&name, kSuffix) &&
      absl::SimpleAtoi(name, &serial)) {
    return serial;
  }
  return std::nullopt;
}

std::string NameOf(int64_t serial) {
  return absl::StrCat(kPrefix, absl::Dec(serial, absl::kZeroPad9), kSuffix);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(std::string directory,
                                                       std::string description, int64_t line,
                                                       TaskPool* pool) {
  std::unique_ptr<Journal> journal(
      new Journal(std::move(directory), std::move(description), line, pool));
  BRAID_RETURN_IF_ERROR(journal->FindSegments());
  return journal;
}

absl::Status Journal::FindSegments() {
  std::error_code error;
  if (!fs::exists(directory_, error)) {
    return absl::OkStatus();
  }
  std::vector<int64_t> serials;
  for (fs::directory_iterator child(directory_, error), end; !error && child != end;
       child.increment(error)) {
    if (const std::optional<int64_t> serial = SerialOf(child->path().filename().string())) {
      serials.push_back(*serial);
    }
  }
  if (error) {
    return FileError(error.value(), "list", directory_);
  }
  std::ranges::sort(serials);
  for (const int64_t serial : serials) {
    const std::string path = absl::StrCat(directory_, "/", NameOf(serial));
    if (!segments_.empty() && serial != next_serial_) {
      damage_.Update(absl::DataLossError(
          absl::StrCat("'", directory_, "/", NameOf(next_serial_), "' is missing")));
    }
    BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
    BRAID_ASSIGN_OR_RETURN(const std::optional<Found> first, ReadRecord(file, 0));
    if (first && first->record.kind == kSegmentStart) {
      segments_.push_back({path, first->record.sequence, first->record.body, 0, first->end});
    } else {
      damage_.Update(Damaged(path, 0));
      segments_.push_back({path, kUnknownLine, /*description=*/""});
    }
    next_serial_ = serial + 1;
  }
  return absl::OkStatus();
}

absl::Status Journal::Read(
    int64_t line,
    absl::FunctionRef<absl::Status(const JournalRecord&, absl::string_view description)> use) {
  BRAID_RETURN_IF_ERROR(damage_);
  for (Segment& segment : segments_) {
    if (segment.line > line) {
      return absl::DataLossError(absl::StrCat("'", segment.path,
                                              "': its records follow a restore of another "
                                              "checkpoint than the newest one that is intact"));
    }
    if (segment.line == line) {
      BRAID_RETURN_IF_ERROR(ReadSegment(segment, &segment == &segments_.back(), use));
    }
  }
  return absl::OkStatus();
}

absl::Status Journal::ReadSegment(
    Segment& segment, bool is_last,
    absl::FunctionRef<absl::Status(const JournalRecord&, absl::string_view description)> use) {
  BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(segment.path));
  int64_t offset = segment.header_end;
  while (offset < file.bytes()) {
    BRAID_ASSIGN_OR_RETURN(const std::optional<Found> found, ReadRecord(file, offset));
    if (!found) {
      BRAID_ASSIGN_OR_RETURN(const bool was_durable, WasDurable(file, offset));
      if (was_durable || !is_last) {
        return Damaged(segment.path, offset);
      }
      break;
    }
    BRAID_RETURN_IF_ERROR(use(found->record, segment.description));
    segment.last = std::max(segment.last, found->record.sequence);
    offset = found->end;
  }
  segment.end = offset;
  if (!is_last) {
    return absl::OkStatus();
  }
  // If only the process has ended, the last records may be in memory.
  BRAID_RETURN_IF_ERROR(Shorten(segment.path, segment.end));
  const FileDescriptor last(open(segment.path.c_str(), O_WRONLY | O_CLOEXEC));
  return last.get() >= 0 && fdatasync(last.get()) == 0 ? absl::OkStatus()
                                                       : FileError(errno, "sync", segment.path);
}

void Journal::Append(uint32_t kind, int64_t sequence, WriteBody body) {
  Push({.record = {kind, sequence, {}}, .body = std::move(body)});
}

void Journal::AppendNote(JournalRecord record) { Push({.record = std::move(record)}); }

void Journal::Sync(Done done) { Push({.done = std::move(done)}); }

void Journal::StartLine(int64_t line) { Push({.line = line}); }

void Journal::Push(Entry entry) {
  const absl::MutexLock lock(&mu_);
  entries_.push_back(std::move(entry));
  if (!commit_posted_) {
    commit_posted_ = true;
    queue_.Post([this] { Commit(); });
  }
}

int64_t Journal::bytes() const {
  const absl::MutexLock lock(&mu_);
  return bytes_;
}

void Journal::Commit() {
  std::vector<Entry> entries;
  {
    const absl::MutexLock lock(&mu_);
    commit_posted_ = false;
    entries.swap(entries_);
  }
  std::vector<Done> waiting;
  const auto write = [&] {
    absl::Status status = WriteUnwritten();
    if (status.ok()) {
      // Before the callbacks, so that a process that dies after a reply leaves the notes.
      status = WriteNotes();
    }
    for (Done& done : std::exchange(waiting, {})) {
      done(status);
    }
  };
  for (Entry& entry : entries) {
    if (entry.line) {
      write();
      // Also records that could not be written belong to operations that are undone.
      unwritten_.clear();
      notes_.clear();
      line_ = *entry.line;
      starts_segment_ = true;
      RemoveSegments();
    } else if (entry.done != nullptr) {
      waiting.push_back(std::move(entry.done));
    } else if (entry.body != nullptr) {
      entry.body(&entry.record.body);
      unwritten_.push_back(std::move(entry.record));
    } else {
      notes_.push_back(std::move(entry.record));
    }
  }
  write();
}

absl::Status Journal::WriteUnwritten() {
  if (unwritten_.empty()) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(OpenSegment());
  Segment& segment = segments_.back();
  int64_t end = segment.end;
  int64_t last = 0;
  for (const JournalRecord& record : unwritten_) {
    BRAID_RETURN_IF_ERROR(WriteRecord(record, &end));
    last = record.sequence;
  }
  if (fdatasync(file_.get()) != 0) {
    absl::Status failure = FileError(errno, "sync", segment.path);
    segment.end = synced_end_;  // the notes after it may be lost, too
    return failure;
  }
  unwritten_.clear();
  const absl::MutexLock lock(&mu_);
  bytes_ += end - segment.end;
  segment.end = end;
  segment.last = std::max(segment.last, last);
  synced_end_ = end;
  return absl::OkStatus();
}

absl::Status Journal::WriteNotes() {
  if (notes_.empty()) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(OpenSegment());
  Segment& segment = segments_.back();
  int64_t end = segment.end;
  for (const JournalRecord& note : notes_) {
    BRAID_RETURN_IF_ERROR(WriteRecord(note, &end));
  }
  notes_.clear();
  const absl::MutexLock lock(&mu_);
  bytes_ += end - segment.end;
  segment.end = end;
  return absl::OkStatus();
}

absl::Status Journal::WriteRecord(const JournalRecord& record, int64_t* end) {
  const std::string& path = segments_.back().path;
  const Header header = MakeHeader(record, synced_end_);
  const absl::string_view head(reinterpret_cast<const char*>(&header), sizeof(header));
  BRAID_RETURN_IF_ERROR(WriteAt(file_.get(), path, *end, head));
  *end += static_cast<int64_t>(head.size());
  BRAID_RETURN_IF_ERROR(WriteAt(file_.get(), path, *end, record.body));
  *end += static_cast<int64_t>(record.body.size());
  return absl::OkStatus();
}

absl::Status Journal::OpenSegment() {
  if (file_.get() >= 0 && !starts_segment_) {
    return absl::OkStatus();
  }
  const bool continues = !starts_segment_ && !segments_.empty() && segments_.back().end >= 0 &&
                         segments_.back().line == line_ &&
                         segments_.back().description == description_;
  if (!continues) {
    BRAID_RETURN_IF_ERROR(CreateSegment());
  }
  Segment& segment = segments_.back();
  FileDescriptor file(open(segment.path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) {
    return FileError(errno, "open", segment.path);
  }
  file_ = std::move(file);
  synced_end_ = segment.end;
  starts_segment_ = false;
  return absl::OkStatus();
}

absl::Status Journal::CreateSegment() {
  // Only the last segment may end with an incomplete record.
  if (!segments_.empty() && segments_.back().end >= 0) {
    BRAID_RETURN_IF_ERROR(Shorten(segments_.back().path, segments_.back().end));
  }
  BRAID_RETURN_IF_ERROR(MakeDirectories(directory_));
  Segment segment{absl::StrCat(directory_, "/", NameOf(next_serial_)), line_, description_};
  const std::string start = Encode({kSegmentStart, line_, description_});
  BRAID_RETURN_IF_ERROR(WriteFileDurably(segment.path, start));
  segment.header_end = static_cast<int64_t>(start.size());
  segment.end = segment.header_end;
  segments_.push_back(std::move(segment));
  ++next_serial_;
  return absl::OkStatus();
}

void Journal::StartSegment() {
  queue_.Post([this] {
    if (!segments_.empty() && segments_.back().end >= kLargeSegment) {
      starts_segment_ = true;
    }
  });
}

void Journal::RemoveSegments() {
  file_ = FileDescriptor(-1);
  // The oldest first, so that a crash leaves no gap. Those that stay have another line.
  while (!segments_.empty() && RemoveTree(segments_.front().path).ok()) {
    segments_.erase(segments_.begin());
  }
}

void Journal::Trim(int64_t sequence) {
  queue_.Post([this, sequence] {
    while (!segments_.empty()) {
      Segment& oldest = segments_.front();
      const bool open = segments_.size() == 1 && file_.get() >= 0;
      const bool unused = oldest.line != line_ || (oldest.end >= 0 && oldest.last <= sequence);
      if (!unused) {
        return;
      }
      if (open && oldest.line == line_) {
        // Cheaper than a new segment. Synced, so that no later record takes the place of an old one
        // in front of others.
        if (ftruncate(file_.get(), oldest.header_end) == 0) {
          fdatasync(file_.get());  // if it fails, so does that of the next record
          oldest.end = oldest.header_end;
          synced_end_ = oldest.header_end;
        }
        return;
      }
      if (!RemoveTree(oldest.path).ok()) {
        return;  // The next call tries again.
      }
      if (segments_.size() == 1) {
        file_ = FileDescriptor(-1);
      }
      segments_.erase(segments_.begin());
    }
  });
}

}  // namespace braid
