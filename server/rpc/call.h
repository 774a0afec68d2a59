// What every RPC does around its work: admission, the clock, the status, the metrics.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "server/admission/admission.h"
#include "server/base/status.h"
#include "server/rpc/status.h"
#include "server/telemetry/metrics.h"

namespace braid {

// What the services share. All of it outlives them.
struct RpcContext {
  Admission* admission = nullptr;
  Metrics* metrics = nullptr;
};

// Counts an RPC from its construction to End().
class CallTimer {
 public:
  // `method` lives as long as the program.
  CallTimer(Metrics* metrics, absl::string_view method)
      : metrics_(metrics), method_(method), start_(absl::Now()) {}

  // To be called once, before the reply goes out.
  grpc::Status End(const absl::Status& status) {
    grpc::Status reply = ToGrpcStatus(status);
    metrics_->CountRequest(method_, CodeName(reply.error_code()), absl::Now() - start_);
    return reply;
  }

 private:
  Metrics* const metrics_;
  const absl::string_view method_;
  const absl::Time start_;
};

// A unary call in flight. Finish() once, from any thread; then it may go.
class UnaryCall {
 public:
  UnaryCall(const RpcContext& rpc, grpc::CallbackServerContext* context, absl::string_view method)
      : reactor_(context->DefaultReactor()), timer_(rpc.metrics, method) {}

  // Takes a place among the requests in flight, until the call is finished.
  absl::Status Admit(const RpcContext& rpc, size_t bytes) {
    BRAID_ASSIGN_OR_RETURN(ticket_, rpc.admission->Admit(bytes));
    return absl::OkStatus();
  }
  void Finish(const absl::Status& status) {
    // First, or the client's next request could be refused for this one's sake.
    ticket_ = Ticket();
    reactor_->Finish(timer_.End(status));
  }
  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

 private:
  grpc::ServerUnaryReactor* const reactor_;
  CallTimer timer_;
  Ticket ticket_;
};

// A unary call whose work is done at once: `work()` fills the response and returns a status.
template <typename Work>
grpc::ServerUnaryReactor* Answer(const RpcContext& rpc, grpc::CallbackServerContext* context,
                                 absl::string_view method, Work work) {
  UnaryCall call(rpc, context, method);
  call.Finish(work());
  return call.reactor();
}

// A unary call whose work ends on another thread: `start(call)` hands it on. It is admitted first.
template <typename Start>
grpc::ServerUnaryReactor* AnswerLater(const RpcContext& rpc, grpc::CallbackServerContext* context,
                                      absl::string_view method, size_t bytes, Start start) {
  auto call = std::make_shared<UnaryCall>(rpc, context, method);
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  if (const absl::Status admitted = call->Admit(rpc, bytes); !admitted.ok()) {
    call->Finish(admitted);
  } else if (const absl::Status started = start(call); !started.ok()) {
    call->Finish(started);
  }
  return reactor;
}

}  // namespace braid
