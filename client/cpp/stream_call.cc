#include "client/cpp/stream_call.h"

#include <utility>

#include "client/cpp/call.h"

namespace braid::client {

StreamCall::StreamCall(v1::TrainingService::StubInterface& stub, Delegate& delegate)
    : stub_(stub), delegate_(delegate) {}

void StreamCall::Start() {
  stub_.async()->Stream(&context_, this);
  // Writes also start outside reactions, so a hold keeps the call alive until the last one ends.
  AddHold();
  StartRead(&reply_);
  StartCall();
  Pump();
}

void StreamCall::Pump() {
  const v1::StreamRequest* operation = nullptr;
  {
    const absl::MutexLock lock(&mu_);
    if (writing_ || writes_done_ || read_all_) return;
    Next next = delegate_.NextToSend();
    if (!next.end && next.operation == nullptr) return;
    writing_ = true;
    writes_done_ = next.end;
    sending_ = std::move(next.operation);
    operation = sending_.get();
  }
  // Outside the lock, because it serializes the operation.
  if (operation == nullptr) {
    StartWritesDone();
  } else {
    StartWrite(operation);
  }
}

void StreamCall::OnReadDone(bool ok) {
  if (ok) {
    if (delegate_error_.ok()) {
      delegate_error_ = delegate_.OnReply(std::move(reply_));
      if (!delegate_error_.ok()) Cancel();
    }
    StartRead(&reply_);
    Pump();
    return;
  }
  bool ended = false;
  {
    const absl::MutexLock lock(&mu_);
    read_all_ = true;
    ended = !writing_;
  }
  if (ended) RemoveHold();
}

void StreamCall::OnWritten(bool can_send_more) {
  bool ended = false;
  {
    const absl::MutexLock lock(&mu_);
    writing_ = false;
    sending_.reset();
    ended = read_all_;
  }
  if (ended) {
    RemoveHold();
  } else if (can_send_more) {
    Pump();
  }
}

// The delegate may destroy this object in OnEnd.
void StreamCall::OnDone(const grpc::Status& status) {
  delegate_.OnEnd(delegate_error_.ok() ? ToAbsl(status) : delegate_error_);
}

}  // namespace braid::client
