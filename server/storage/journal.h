// Records that survive a crash, in the order in which they were appended. See journal_records.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/base/task_pool.h"
#include "server/storage/file_descriptor.h"
#include "server/storage/journal_records.h"

namespace braid {

// Owned by a trainer. Thread-safe, except Read(). Records are written and synced by a thread of the
// pool, several at a time (group commit). The files are created with the first record.
class Journal {
 public:
  // Appends the body to its argument.
  using WriteBody = std::function<void(std::string*)>;
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  // Finds the segments. `description`: text about this process; a process with another text starts
  // a new segment. `line`: line of the records to append. `pool`: outlives the object.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(std::string directory,
                                                       std::string description, int64_t line,
                                                       TaskPool* pool, JournalHistory history = {});

  // Calls `use` for each record of `line`, in order, with the description of the process that wrote
  // it, until `use` fails. May skip records with sequences up to `after`. Then syncs the last
  // segment. Must precede Append(). Blocks. DATA_LOSS naming file and byte if a durable record is
  // damaged, if a segment is missing, or if there are records of a later line.
  absl::Status Read(
      int64_t line, int64_t after,
      absl::FunctionRef<absl::Status(const JournalRecord&, absl::string_view description)> use);

  // Returns the largest line of the segments. Must precede Append().
  int64_t last_line() const;

  // Queues a record. `body` is called before the next callback of Sync(), by another thread.
  void Append(uint32_t kind, int64_t sequence, WriteBody body) ABSL_LOCKS_EXCLUDED(mu_);
  // Queues a record that is written after the records before it have become durable. It is not
  // synced itself: it survives if the process dies, but maybe not if the machine does.
  void AppendNote(JournalRecord record) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` when all records appended so far are durable and the notes are written, or with an
  // error: RESOURCE_EXHAUSTED if the disk is full. Records that are not durable are kept in memory,
  // and every later Sync() tries again. `done` is called by a thread of the pool and must not
  // block.
  void Sync(Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of bytes appended by this process.
  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the size of all segments.
  int64_t size() const ABSL_LOCKS_EXCLUDED(mu_);

  // Sets the line of later records, which is larger than that of earlier ones. Deletes earlier
  // records unless a history is kept.
  void StartLine(int64_t line) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the next record start a segment if the current one is large, so that a later Trim() can
  // delete the current one.
  void StartSegment() ABSL_LOCKS_EXCLUDED(mu_);
  // Deletes segments in which no record of the line has a sequence above `sequence`, except those
  // of the history. Empties the current one instead.
  void Trim(int64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the position of the oldest record, or nullopt if there is no history or no record.
  std::optional<JournalPosition> history_start() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Segment {
    JournalSegment file;
    int64_t last = 0;  // sequence of the last record
    int64_t end = -1;  // size without an incomplete record; -1: not read
  };

  static int64_t SizeOf(const Segment& segment);

  Journal(std::string directory, std::string description, int64_t line, TaskPool* pool,
          JournalHistory history)
      : directory_(std::move(directory)),
        description_(std::move(description)),
        history_(history),
        line_(line),
        queue_(pool) {}

  absl::Status FindSegments();
  // Sets history_start_ and size_, after the segments have changed.
  void UpdateSummary() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether Trim() keeps the oldest segment for the history.
  bool InHistory() const;
  void TrimNow(int64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ReadSegment(
      Segment& segment, bool is_last,
      absl::FunctionRef<absl::Status(const JournalRecord&, absl::string_view description)> use);
  struct Entry {
    JournalRecord record = {};
    WriteBody body = nullptr;                    // of a record to sync
    Done done = nullptr;                         // of Sync(), which has no record
    std::optional<int64_t> line = std::nullopt;  // of StartLine(), which has no record
  };
  // Queues an entry, and posts Commit() unless it is posted.
  void Push(Entry entry) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes what is queued.
  void Commit() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes and syncs `unwritten_`.
  absl::Status WriteUnwritten() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteNotes() ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveSegments();
  // Opens the segment for the next record.
  absl::Status OpenSegment();
  absl::Status CreateSegment();
  absl::Status WriteRecord(const JournalRecord& record, int64_t* end);

  const std::string directory_;
  const std::string description_;
  const JournalHistory history_;

  // Used by the queue's tasks, and by Open() and Read() before there are any.
  int64_t line_;
  std::vector<Segment> segments_;  // oldest first
  int64_t next_serial_ = 1;
  FileDescriptor file_{-1};  // of the last segment; -1: not open
  bool starts_segment_ = false;
  int64_t synced_end_ = 0;  // durable size of the last segment
  std::vector<JournalRecord> unwritten_;
  std::vector<JournalRecord> notes_;

  mutable absl::Mutex mu_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);
  bool commit_posted_ ABSL_GUARDED_BY(mu_) = false;
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t size_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<JournalPosition> history_start_ ABSL_GUARDED_BY(mu_);

  // Last member: ends first.
  TaskQueue queue_;
};

}  // namespace braid
