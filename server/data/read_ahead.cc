#include "server/data/read_ahead.h"

#include <utility>

#include "arrow/record_batch.h"
#include "server/base/background_thread.h"

namespace braid {

ReadAhead::ReadAhead(std::unique_ptr<RowScan> scan)
    : scan_(std::move(scan)), thread_([this] { Run(); }) {}

ReadAhead::~ReadAhead() {
  {
    const absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> ReadAhead::Next() {
  const absl::MutexLock lock(&mu_, absl::Condition(this, &ReadAhead::HasNext));
  if (!read_.front().ok() || *read_.front() == nullptr) {
    return read_.front();  // The thread has ended.
  }
  Batch next = std::move(read_.front());
  read_.pop_front();
  return next;
}

void ReadAhead::Run() {
  EnterBackground("reader");
  bool more = true;
  while (more) {
    {
      const absl::MutexLock lock(&mu_, absl::Condition(this, &ReadAhead::HasRoom));
      if (stop_) {
        return;
      }
    }
    Batch batch = scan_->Next();
    more = batch.ok() && *batch != nullptr;
    const absl::MutexLock lock(&mu_);
    read_.push_back(std::move(batch));
  }
}

}  // namespace braid
