// What every RPC does around its work: admission, the clock, the status, the metrics.
#pragma once

#include <memory>
#include <string>
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

  // The model that the call is about, as the client names it.
  void set_model(absl::string_view model) { model_ = std::string(model); }

  // To be called once, before the reply goes out.
  grpc::Status End(const absl::Status& status) {
    grpc::Status reply = ToGrpcStatus(status);
    metrics_->CountRequest(method_, model_, CodeName(reply.error_code()), absl::Now() - start_);
    return reply;
  }

 private:
  Metrics* const metrics_;
  const absl::string_view method_;
  const absl::Time start_;
  std::string model_;
};

// A unary call in flight. Reply() once, from any thread; then its users may let go of it. gRPC does
// when the reply is out.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(const RpcContext& rpc, absl::string_view method)
      : timer_(rpc.metrics, method), self_(this) {}

  // For who starts it: it may be answered, and gone, while it is being started.
  std::shared_ptr<UnaryCall> self() const { return self_; }
  // Takes a place among the requests in flight, until the reply.
  absl::Status Admit(const RpcContext& rpc, size_t bytes) {
    BRAID_ASSIGN_OR_RETURN(ticket_, rpc.admission->Admit(bytes));
    return absl::OkStatus();
  }
  // As CallTimer's, before anybody may reply.
  void set_model(absl::string_view model) { timer_.set_model(model); }
  void Reply(const absl::Status& status) {
    // First, or the client's next request could be refused for this one's sake.
    ticket_.GiveBack();
    Finish(timer_.End(status));
  }

  void OnDone() override { self_.reset(); }
  // Its reactions are short, and need no thread of their own from gRPC's executor, which would cost
  // a tenth of a small request's time. gRPC's default reactor says the same.
  bool InternalInlineable() override { return true; }

 private:
  CallTimer timer_;
  Ticket ticket_;
  std::shared_ptr<UnaryCall> self_;  // gRPC's hold on the call
};

// A unary call whose work is done at once: `work()` fills the response and returns a status.
// `model`: as CallTimer's.
template <typename Work>
grpc::ServerUnaryReactor* Answer(const RpcContext& rpc, grpc::CallbackServerContext* context,
                                 absl::string_view method, Work work,
                                 absl::string_view model = "") {
  CallTimer timer(rpc.metrics, method);
  timer.set_model(model);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(timer.End(work()));
  return reactor;
}

// A unary call whose work ends on another thread: `start(call)` hands it on. It is admitted first.
template <typename Start>
grpc::ServerUnaryReactor* AnswerLater(const RpcContext& rpc, absl::string_view method, size_t bytes,
                                      Start start) {
  auto* const reactor = new UnaryCall(rpc, method);  // gRPC's, and its users'
  const std::shared_ptr<UnaryCall> call = reactor->self();
  if (const absl::Status admitted = call->Admit(rpc, bytes); !admitted.ok()) {
    call->Reply(admitted);
  } else if (const absl::Status started = start(call); !started.ok()) {
    call->Reply(started);
  }
  return reactor;
}

}  // namespace braid
