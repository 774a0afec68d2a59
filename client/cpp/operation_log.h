// What a client keeps of a trainer's operations to send them again, and the rule by which it does.
//
// A server that is started again has its trainers stand where their newest checkpoints do: at the
// durable number. The operations after it have to be made again, each with its own number and
// bytes, before training goes on. The rule, where the trainer stands elsewhere than the client has
// seen:
//
// - further on, within what the client has sent: replies were lost, nothing else. The operation
//   that the trainer stands at is sent again, so that the server compares it with the one applied;
// - further on than that: another client operates the trainer, which is an error;
// - further back, at its durable number, and the connection broke or the server is another instance
//   than the one that replied last: the server was started again. What is kept of the operations
//   after that number is sent again. If too few are, that is an error;
// - further back otherwise: another client has restored a checkpoint, which is an error.
//
// Numbers can meet by chance, so the trainer says who made it stand where it does, and an operation
// says whom it follows. Where that is another than the client knows, it is an error, wherever the
// trainer stands.
//
// A client never sends what it did not operate itself. Internal.
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

// Operations in a row, from the first that a restart of the server could undo to the last.
// Thread-compatible.
class OperationLog {
 public:
  using Operation = std::shared_ptr<const v1::StreamRequest>;

  static constexpr size_t kAnyNumber = std::numeric_limits<size_t>::max();
  static constexpr int64_t kDefaultBytes = int64_t{512} << 20;

  // The next operation is the one after `applied`. `keeps`: whether operations that were applied
  // stay until they are durable.
  OperationLog(int64_t applied, bool keeps) : keeps_(keeps), base_(applied) {}

  // Empties it; the next operation is the one after `applied`.
  void Reset(int64_t applied);
  // Bounds what it holds.
  void Limit(size_t operations, int64_t bytes);
  void StopKeeping() { keeps_ = false; }
  bool keeps() const { return keeps_; }

  // The number before the first operation.
  int64_t base() const { return base_; }
  // The number of the last operation, also where it is no longer kept.
  int64_t last() const { return base_ + static_cast<int64_t>(entries_.size()); }

  // Whether an operation of so many bytes more is too much. An empty log takes one of any size. So
  // does one that ends in a graph that is kept, unless what comes keeps another: room is made by a
  // checkpoint, which holds no graph, and would lose it before its Backward.
  bool IsFull(size_t bytes, bool keeps_graph = false) const;
  // `sequence` must be in (base, last].
  const Operation& Get(int64_t sequence) const;
  // Adds the one after the last.
  void Add(Operation operation);
  // Drops what need not be sent again, the trainer being where the numbers say.
  void Settle(int64_t applied, int64_t durable);
  // Drops the operations after `sequence`, whose numbers are free again, and returns them.
  std::vector<Operation> DropAfter(int64_t sequence);

 private:
  struct Entry {
    Operation operation;
    int64_t bytes;
  };

  bool keeps_;
  size_t most_operations_ = kAnyNumber;
  int64_t most_bytes_ = kDefaultBytes;
  int64_t base_;
  std::deque<Entry> entries_;
  int64_t bytes_ = 0;
};

// Where a client is with a trainer.
struct Position {
  // The last number whose reply has come, of those that the trainer has applied since it last fell
  // back.
  int64_t seen;
  // The last one sent since.
  int64_t sent;
  // The client's OperationLog::base() and keeps().
  int64_t base;
  bool keeps;
};

// The number to send next, by the rule above, to a trainer that stands as `info` says.
// FAILED_PRECONDITION where nothing may be sent. `restarted` is asked only where it matters.
absl::StatusOr<int64_t> ResumeAt(const v1::Trainer& info, const Position& position,
                                 absl::FunctionRef<bool()> restarted);

// What to return where operation `info.applied_sequence()` is not the one that a client knows.
absl::Status OperatedByAnother(const v1::Trainer& info);

// `status`, saying that another client is the likely cause.
absl::Status ByAnotherClient(const absl::Status& status);

}  // namespace braid::client
