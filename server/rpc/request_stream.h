// Base class of calls in which the client streams requests and gets one reply.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "server/admission/open_streams.h"
#include "server/base/status.h"
#include "server/rpc/auth/string_limits.h"
#include "server/rpc/call.h"

namespace braid {

// One call. gRPC calls the reactor methods one at a time: it reads a request, OnRequest() starts
// work on it, and the work calls Next() for the next request, from any thread. Deletes itself when
// the call is over and no work holds self().
template <typename Request>
class RequestStream : public grpc::ServerReadReactor<Request>, public OpenStream {
 public:
  ~RequestStream() override { rpc_.streams->Remove(this); }

  // Ends the call after the work in progress.
  void BeginClose(const absl::Status& status) final ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    close_status_ = status;
    if (reading_) {
      EndLocked(status);
    }
  }
  void OnReadDone(bool ok) final ABSL_LOCKS_EXCLUDED(mu_) {
    {
      const absl::MutexLock lock(&mu_);
      reading_ = false;
      if (ended_) {
        return;
      }
    }
    if (ok) {
      OnRequest();
    } else {
      OnLast();
    }
  }
  void OnCancel() final { End(Cancelled()); }
  void OnDone() final {
    {
      const absl::MutexLock lock(&mu_);
      if (!last_status_.ok()) {
        RecordEnd(call_.IsCancelled() ? Cancelled() : last_status_);
      }
    }
    self_.reset();
  }

 protected:
  // method: a string literal.
  RequestStream(const RpcContext& rpc, const grpc::CallbackServerContext& call,
                absl::string_view method)
      : rpc_(rpc),
        call_(call),
        self_(this),
        record_(rpc.metrics, method),
        caller_(rpc.access, call, method) {}

  // Authorizes the caller and reads the first request. Called once, by the last constructor.
  void Start() ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    absl::Status allowed = caller_.CheckStart();
    if (allowed.ok()) {
      allowed = rpc_.streams->Add(self_, caller_.client());
    }
    if (allowed.ok()) {
      Read();
    } else {
      EndLocked(allowed);
    }
  }

  // Handles request(), and then calls Next() or End().
  virtual void OnRequest() = 0;
  // Called after the last request, or when the connection broke. Calls End().
  virtual void OnLast() = 0;

  // Keeps the call alive. Needed by work in progress.
  std::shared_ptr<OpenStream> self() const { return self_; }
  const Request& request() const { return request_; }
  // Authorizes request(), which is about `names`, checks its strings and counts it as in flight
  // until Next().
  absl::Status Admit(const Names& names) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      const absl::MutexLock lock(&mu_);
      BRAID_RETURN_IF_ERROR(caller_.CheckNames(names));
    }
    BRAID_RETURN_IF_ERROR(CheckStrings(request_));
    return Admit(request_.ByteSizeLong());
  }
  // Counts `bytes` as in flight until Next().
  absl::Status Admit(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    std::string client;
    {
      const absl::MutexLock lock(&mu_);
      client = caller_.client();
    }
    BRAID_ASSIGN_OR_RETURN(ticket_, rpc_.admission->Admit(bytes, std::move(client)));
    return absl::OkStatus();
  }
  // Reads the next request, or ends the call after BeginClose().
  void Next() ABSL_LOCKS_EXCLUDED(mu_) {
    ticket_ = Ticket();  // waiting for the client does not count as in flight
    const absl::MutexLock lock(&mu_);
    Read();
  }
  // Ends the call, once.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    EndLocked(status);
  }
  // End() with an error of OnLast(). gRPC may report the end of the requests before it reports that
  // the client cancelled the call, so this records the outcome only when it is certain.
  void EndLast(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    if (!std::exchange(ended_, true)) {
      last_status_ = error;
      this->Finish(ToGrpcStatus(error));
    }
  }
  bool ended() const ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    return ended_;
  }
  // Adds a detail to the audit. Call before End().
  void RecordAudit(const std::string& name, AuditValue value) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    caller_.RecordAudit(name, std::move(value));
  }

 private:
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!close_status_.ok()) {
      EndLocked(close_status_);
    } else if (!ended_) {
      reading_ = true;
      this->StartRead(&request_);
    }
  }
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!std::exchange(ended_, true)) {
      this->Finish(RecordEnd(status));
    }
  }
  grpc::Status RecordEnd(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    caller_.Audit(status);
    return record_.End(status, caller_, caller_.model());
  }
  static absl::Status Cancelled() {
    return absl::CancelledError("the client disconnected or cancelled the call");
  }

  const RpcContext rpc_;
  const grpc::CallbackServerContext& call_;  // valid until OnDone() returns
  // gRPC's reference, until OnDone(). Work in progress holds another.
  std::shared_ptr<RequestStream> self_;
  CallRecord record_;
  Ticket ticket_;
  Request request_;

  mutable absl::Mutex mu_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // false: work is in progress
  // If not OK: ends with this status after the work in progress.
  absl::Status close_status_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status last_status_ ABSL_GUARDED_BY(mu_);  // of EndLast()
  Caller caller_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
