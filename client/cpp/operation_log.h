// Log of a trainer's operations for replay after a server restart. Internal.
//
// After a server restart, a trainer is back at its newest checkpoint, at its durable sequence
// number. The client then sends the later operations again, each with its own number and bytes. If
// the trainer's number is not the one the client expects, ResumeAt decides:
//
// - The number is higher, but at most the last one sent: only replies were lost. The client sends
//   the trainer's last operation again; the server compares it with the applied one and replies.
// - The number is higher than the last one sent: another client operates the trainer. Error.
// - The number is lower and equals the durable number, and the connection broke or the server's
//   uptime shows a restart: the server restarted. The client replays the later operations from the
//   log. If the log no longer has them all, this is an error.
// - The number is lower otherwise: another client restored a checkpoint. Error.
//
// Two clients may reach equal numbers. So the trainer reports the client that made its last
// operation, and each operation names the client that made the one before it. A mismatch is an
// error, whatever the numbers.
//
// A client sends only operations of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/training.pb.h"

namespace braid::client {

// Consecutive operations, from the first one that is not durable to the last one.
// Thread-compatible.
class OperationLog {
 public:
  using Operation = std::shared_ptr<const v1::StreamRequest>;

  static constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
  static constexpr int64_t kDefaultBytes = int64_t{512} << 20;

  // The next operation has number `applied` + 1. If `retains`, applied operations stay in the log
  // until they are durable.
  OperationLog(int64_t applied, bool retains) : retains_(retains), base_(applied) {}

  // Clears the log. The next operation has number `applied` + 1.
  void Reset(int64_t applied);
  // Sets the capacity.
  void Limit(size_t operations, int64_t bytes);
  void StopRetaining() { retains_ = false; }
  bool retains() const { return retains_; }

  // Returns the number before the first operation in the log.
  int64_t base() const { return base_; }
  // Returns the number of the last operation, even if it is no longer in the log.
  int64_t last() const { return base_ + static_cast<int64_t>(entries_.size()); }

  // Reports whether an operation of `bytes` exceeds the capacity. An empty log accepts any size. So
  // does a log that ends in a Forward with `keep_graph`, unless the new operation also has
  // `keeps_graph`: a checkpoint makes room but contains no graph, so it must not come between a
  // Forward and its Backward.
  bool IsFull(size_t bytes, bool keeps_graph = false) const;
  // Returns an operation. `sequence` must be in (base, last].
  const Operation& Get(int64_t sequence) const;
  // Appends an operation.
  void Add(Operation operation);
  // Drops operations up to `durable`, or up to `applied` if the log does not retain them.
  void Trim(int64_t applied, int64_t durable);
  // Removes and returns the operations after `sequence`. Their numbers become available again.
  std::vector<Operation> TruncateAfter(int64_t sequence);

 private:
  struct Entry {
    Operation operation;
    int64_t bytes;
  };

  bool retains_;
  size_t max_operations_ = kUnlimited;
  int64_t max_bytes_ = kDefaultBytes;
  int64_t base_;
  std::deque<Entry> entries_;
  int64_t bytes_ = 0;
};

// A client's progress with a trainer.
struct Position {
  // Last number with a reply, since the trainer last lost operations.
  int64_t acknowledged;
  // Last number sent since then.
  int64_t sent;
  // OperationLog::base() and OperationLog::retains().
  int64_t base;
  bool retains;
};

// Returns the number to send next to a trainer in state `info`, by the rules at the top of this
// file. FAILED_PRECONDITION if those rules end in an error. Calls `restarted` only if the result
// depends on it.
absl::StatusOr<int64_t> ResumeAt(const v1::Trainer& info, const Position& position,
                                 absl::FunctionRef<bool()> restarted);

// Returns the error for a trainer whose last operation was made by another client.
absl::Status OtherOperatorError(const v1::Trainer& info);

// Adds to the message of `status` that another client is the likely cause.
absl::Status WithOtherClientHint(const absl::Status& status);

}  // namespace braid::client
