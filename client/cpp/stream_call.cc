#include "client/cpp/stream_call.h"

#include <utility>

#include "client/cpp/call.h"

namespace braid::client {

StreamCall::StreamCall(v1::TrainingService::StubInterface& stub, Owner& owner)
    : stub_(stub), owner_(owner) {}

void StreamCall::Start() {
  stub_.async()->Stream(&context_, this);
  // Writes begin outside reactions too, so the call must not be over before the last of them is.
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
    Next next = owner_.NextToSend();
    if (!next.end && next.operation == nullptr) return;
    writing_ = true;
    writes_done_ = next.end;
    sending_ = std::move(next.operation);
    operation = sending_.get();
  }
  // Outside the lock: it serializes the operation.
  if (operation == nullptr) {
    StartWritesDone();
  } else {
    StartWrite(operation);
  }
}

void StreamCall::OnReadDone(bool ok) {
  if (ok) {
    if (fault_.ok()) {
      fault_ = owner_.TakeReply(std::move(reply_));
      if (!fault_.ok()) Cancel();
    }
    StartRead(&reply_);
    Pump();
    return;
  }
  bool over = false;
  {
    const absl::MutexLock lock(&mu_);
    read_all_ = true;
    over = !writing_;
  }
  if (over) RemoveHold();
}

void StreamCall::Wrote(bool go_on) {
  bool over = false;
  {
    const absl::MutexLock lock(&mu_);
    writing_ = false;
    sending_.reset();
    over = read_all_;
  }
  if (over) {
    RemoveHold();
  } else if (go_on) {
    Pump();
  }
}

// The owner may destroy this object as soon as it is told.
void StreamCall::OnDone(const grpc::Status& status) {
  owner_.Over(fault_.ok() ? ToAbsl(status) : fault_);
}

}  // namespace braid::client
