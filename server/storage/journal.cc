#include "server/storage/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/storage/file_error.h"
#include "server/storage/files.h"
#include "server/storage/input_file.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// StartSegment() ignores smaller segments.
constexpr int64_t kLargeSegment = int64_t{4} << 20;
// Segments have at most this fraction of a history's limit.
constexpr int64_t kSegmentsOfHistory = 8;

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

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(std::string directory,
                                                       std::string description, int64_t line,
                                                       TaskPool* pool, JournalHistory history) {
  std::unique_ptr<Journal> journal(
      new Journal(std::move(directory), std::move(description), line, pool, history));
  BRAID_RETURN_IF_ERROR(journal->FindSegments());
  return journal;
}

absl::Status Journal::FindSegments() {
  BRAID_ASSIGN_OR_RETURN(std::vector<JournalSegment> files, ListSegments(directory_));
  for (JournalSegment& file : files) {
    next_serial_ = file.serial + 1;
    segments_.push_back({std::move(file)});
  }
  UpdateSummary();
  return absl::OkStatus();
}

int64_t Journal::SizeOf(const Segment& segment) {
  return segment.end >= 0 ? segment.end : segment.file.bytes;
}

void Journal::UpdateSummary() {
  std::optional<JournalPosition> start;
  if (history_.kept()) {
    const auto found = std::ranges::find_if(
        segments_, [](const Segment& segment) { return segment.file.first > 0; });
    if (found != segments_.end()) {
      start = {found->file.line, found->file.first};
    }
  }
  int64_t size = 0;
  for (const Segment& segment : segments_) {
    size += SizeOf(segment);
  }
  const absl::MutexLock lock(&mu_);
  history_start_ = start;
  size_ = size;
}

int64_t Journal::size() const {
  const absl::MutexLock lock(&mu_);
  return size_;
}

int64_t Journal::last_line() const {
  int64_t last = 0;
  for (const Segment& segment : segments_) {
    last = std::max(last, segment.file.line);
  }
  return last;
}

std::optional<JournalPosition> Journal::history_start() const {
  const absl::MutexLock lock(&mu_);
  return history_start_;
}

absl::Status Journal::Read(
    int64_t line, int64_t after,
    absl::FunctionRef<absl::Status(const JournalRecord&, absl::string_view description)> use) {
  // The segments before this one have no later records.
  size_t first = 0;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const JournalSegment& file = segments_[s].file;
    if (file.line == line && file.first > 0 && file.first <= after) {
      first = s;
    }
  }
  for (size_t s = 0; s < first; ++s) {
    segments_[s].last = segments_[first].file.first;
    segments_[s].end = segments_[s].file.bytes;
  }
  for (size_t s = first; s < segments_.size(); ++s) {
    Segment& segment = segments_[s];
    BRAID_RETURN_IF_ERROR(segment.file.damage);
    if (segment.file.line > line) {
      return absl::DataLossError(absl::StrCat("'", segment.file.path,
                                              "': its records follow a restore of another "
                                              "checkpoint than the newest one that is intact"));
    }
    if (segment.file.line == line) {
      BRAID_RETURN_IF_ERROR(ReadSegment(segment, &segment == &segments_.back(), use));
    }
  }
  return absl::OkStatus();
}

absl::Status Journal::ReadSegment(
    Segment& segment, bool is_last,
    absl::FunctionRef<absl::Status(const JournalRecord&, absl::string_view description)> use) {
  const std::string& path = segment.file.path;
  BRAID_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  int64_t offset = segment.file.header_end;
  while (offset < file.bytes()) {
    BRAID_ASSIGN_OR_RETURN(const std::optional<FoundRecord> found, ReadRecord(file, offset));
    if (!found) {
      BRAID_ASSIGN_OR_RETURN(const bool was_durable, WasDurable(file, offset));
      if (was_durable || !is_last) {
        return DamagedRecord(path, offset);
      }
      break;
    }
    BRAID_RETURN_IF_ERROR(use(found->record, segment.file.description));
    segment.last = std::max(segment.last, found->record.sequence);
    offset = found->end;
  }
  segment.end = offset;
  if (!is_last) {
    return absl::OkStatus();
  }
  // If only the process has ended, the last records may be in memory.
  BRAID_RETURN_IF_ERROR(Shorten(path, segment.end));
  const FileDescriptor last(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return last.get() >= 0 && fdatasync(last.get()) == 0 ? absl::OkStatus()
                                                       : FileError(errno, "sync", path);
}

void Journal::Append(uint32_t kind, int64_t sequence, WriteBody body) {
  Push({.record = {kind, sequence, {}}, .body = std::move(body)});
}

void Journal::AppendNote(JournalRecord record) {
  record.is_note = true;
  Push({.record = std::move(record)});
}

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
      if (!history_.kept()) {
        RemoveSegments();
        UpdateSummary();
      }
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
  const bool is_first = segment.file.first == 0;
  for (const JournalRecord& record : unwritten_) {
    BRAID_RETURN_IF_ERROR(WriteRecord(record, &end));
    last = record.sequence;
  }
  if (fdatasync(file_.get()) != 0) {
    absl::Status failure = FileError(errno, "sync", segment.file.path);
    segment.end = synced_end_;  // the notes after it may be lost, too
    return failure;
  }
  if (is_first) {
    segment.file.first = unwritten_.front().sequence;
    UpdateSummary();
  }
  unwritten_.clear();
  segment.file.written = absl::Now();
  segment.last = std::max(segment.last, last);
  synced_end_ = end;
  const absl::MutexLock lock(&mu_);
  const int64_t written = end - std::exchange(segment.end, end);
  bytes_ += written;
  size_ += written;
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
  size_ += end - segment.end;
  segment.end = end;
  return absl::OkStatus();
}

absl::Status Journal::WriteRecord(const JournalRecord& record, int64_t* end) {
  const std::string& path = segments_.back().file.path;
  const std::string head = RecordHeader(record, synced_end_);
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
                         segments_.back().file.line == line_ &&
                         segments_.back().file.description == description_;
  if (!continues) {
    BRAID_RETURN_IF_ERROR(CreateSegment());
  }
  Segment& segment = segments_.back();
  FileDescriptor file(open(segment.file.path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) {
    return FileError(errno, "open", segment.file.path);
  }
  file_ = std::move(file);
  synced_end_ = segment.end;
  starts_segment_ = false;
  return absl::OkStatus();
}

absl::Status Journal::CreateSegment() {
  // Only the last segment may end with an incomplete record.
  if (!segments_.empty() && segments_.back().end >= 0) {
    BRAID_RETURN_IF_ERROR(Shorten(segments_.back().file.path, segments_.back().end));
  }
  BRAID_RETURN_IF_ERROR(MakeDirectories(directory_));
  JournalSegment file;
  file.path = absl::StrCat(directory_, "/", SegmentName(next_serial_));
  file.serial = next_serial_;
  file.line = line_;
  file.description = description_;
  file.written = absl::Now();
  const std::string start = SegmentStart(line_, description_);
  BRAID_RETURN_IF_ERROR(WriteFileDurably(file.path, start));
  file.header_end = static_cast<int64_t>(start.size());
  segments_.push_back({.file = std::move(file), .end = static_cast<int64_t>(start.size())});
  ++next_serial_;
  UpdateSummary();
  return absl::OkStatus();
}

void Journal::StartSegment() {
  queue_.Post([this] {
    const int64_t large = history_.bytes > 0
                              ? std::min(kLargeSegment, history_.bytes / kSegmentsOfHistory)
                              : kLargeSegment;
    if (!segments_.empty() && segments_.back().end >= large) {
      starts_segment_ = true;
    }
  });
}

void Journal::RemoveSegments() {
  file_ = FileDescriptor(-1);
  // The oldest first, so that a crash leaves no gap. Those that stay have another line.
  while (!segments_.empty() && RemoveTree(segments_.front().file.path).ok()) {
    segments_.erase(segments_.begin());
  }
}

bool Journal::InHistory() const {
  if (!history_.kept()) {
    return false;
  }
  int64_t later = 0;
  for (size_t s = 1; s < segments_.size(); ++s) {
    later += SizeOf(segments_[s]);
  }
  const bool large = history_.bytes > 0 && later >= history_.bytes;
  const bool old = history_.age > absl::ZeroDuration() &&
                   segments_.front().file.written < absl::Now() - history_.age;
  return !large && !old;
}

void Journal::Trim(int64_t sequence) {
  queue_.Post([this, sequence] {
    TrimNow(sequence);
    UpdateSummary();
  });
}

void Journal::TrimNow(int64_t sequence) {
  while (!segments_.empty()) {
    Segment& oldest = segments_.front();
    const bool open = segments_.size() == 1 && file_.get() >= 0;
    const bool unused = oldest.file.line != line_ || (oldest.end >= 0 && oldest.last <= sequence);
    if (!unused || InHistory()) {
      return;
    }
    if (open && oldest.file.line == line_) {
      // Cheaper than a new segment. Synced, so that no later record takes the place of an old one
      // in front of others.
      if (ftruncate(file_.get(), oldest.file.header_end) == 0) {
        fdatasync(file_.get());  // if it fails, so does that of the next record
        oldest.file.first = 0;
        oldest.end = oldest.file.header_end;
        synced_end_ = oldest.file.header_end;
      }
      return;
    }
    if (!RemoveTree(oldest.file.path).ok()) {
      return;  // The next call tries again.
    }
    if (segments_.size() == 1) {
      file_ = FileDescriptor(-1);
    }
    segments_.erase(segments_.begin());
  }
}

}  // namespace braid
