// What every RPC does around its work: admission, the clock, the status, the metrics.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "server/admission/admission.h"
#include "server/admission/open_streams.h"
#include "server/base/status.h"
#include "server/rpc/auth/access.h"
#include "server/rpc/status.h"
#include "server/telemetry/access_log.h"
#include "server/telemetry/audit_log.h"
#include "server/telemetry/metrics.h"

namespace braid {

// What the services share. All of it outlives them.
struct RpcContext {
  Admission* admission = nullptr;
  OpenStreams* streams = nullptr;
  Metrics* metrics = nullptr;
  CallAccess access;
};

// Counts an RPC from its construction to End(), and tells the access log of it.
class CallRecord {
 public:
  // `method` lives as long as the program.
  CallRecord(Metrics* metrics, absl::string_view method)
      : metrics_(metrics), method_(method), start_(absl::Now()) {}

  // For the access log: what costs something is to be filled in only while AccessLogOn().
  CallFacts& facts() { return facts_; }

  // To be called once, before the reply goes out. `model`: that the call was about, as the client
  // names it; empty: none.
  grpc::Status End(const absl::Status& status, const Caller& caller, absl::string_view model) {
    grpc::Status reply = ToGrpcStatus(status);
    const absl::Duration duration = absl::Now() - start_;
    const absl::string_view code = CodeName(reply.error_code());
    metrics_->CountRequest(method_, model, code, duration);
    if (AccessLogOn()) {
      LogAccess({method_, std::string(model), code, caller.identity(), caller.peer(),
                 caller.trace_id(), duration},
                std::move(facts_));
    }
    return reply;
  }

 private:
  Metrics* const metrics_;
  const absl::string_view method_;
  const absl::Time start_;
  CallFacts facts_;
};

// A unary call in flight. Reply() once, from any thread; then its users may let go of it. gRPC does
// when the reply is out.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(const RpcContext& rpc, const grpc::CallbackServerContext& context,
            absl::string_view method)
      : record_(rpc.metrics, method), caller_(rpc.access, context, method), self_(this) {}

  // For who starts it: it may be answered, and gone, while it is being started.
  std::shared_ptr<UnaryCall> self() const { return self_; }
  // Whether the caller may; then takes a place among the requests in flight, until the reply.
  template <typename Request>
  absl::Status Admit(const RpcContext& rpc, const Request& request) {
    BRAID_RETURN_IF_ERROR(Check(request));
    return TakePlace(rpc, request.ByteSizeLong());
  }
  // The two by themselves: what the caller may beyond the call is known after the first.
  template <typename Request>
  absl::Status Check(const Request& request) {
    return caller_.Check(request);
  }
  absl::Status TakePlace(const RpcContext& rpc, size_t bytes) {
    BRAID_ASSIGN_OR_RETURN(ticket_, rpc.admission->Admit(bytes, caller_.client()));
    return absl::OkStatus();
  }
  const Caller& caller() const { return caller_; }
  CallFacts& facts() { return record_.facts(); }
  // For the audit, before Reply().
  void Did(const std::string& name, AuditValue value) { caller_.Did(name, std::move(value)); }
  void Reply(const absl::Status& status) {
    // First, or the client's next request could be refused for this one's sake.
    ticket_.GiveBack();
    caller_.Audit(status);
    Finish(record_.End(status, caller_, caller_.model()));
  }

  void OnDone() override { self_.reset(); }
  // Its reactions are short, and need no thread of their own from gRPC's executor, which would cost
  // a tenth of a small request's time. gRPC's default reactor says the same.
  bool InternalInlineable() override { return true; }

 private:
  CallRecord record_;
  Caller caller_;
  Ticket ticket_;
  std::shared_ptr<UnaryCall> self_;  // gRPC's hold on the call
};

// A unary call whose work is done at once: `work()`, or `work(caller)`, fills the response and
// returns a status.
template <typename Request, typename Work>
grpc::ServerUnaryReactor* Answer(const RpcContext& rpc, grpc::CallbackServerContext* context,
                                 absl::string_view method, const Request& request, Work work) {
  CallRecord record(rpc.metrics, method);
  Caller caller(rpc.access, *context, method);
  absl::Status status = caller.Check(request);
  if (status.ok()) {
    if constexpr (std::is_invocable_v<Work, const Caller&>) {
      status = work(std::as_const(caller));
    } else {
      status = work();
    }
  }
  caller.Audit(status);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(record.End(status, caller, caller.model()));
  return reactor;
}

// A unary call whose work ends on another thread: `start(call)` hands it on. It is admitted first.
template <typename Request, typename Start>
grpc::ServerUnaryReactor* AnswerLater(const RpcContext& rpc,
                                      const grpc::CallbackServerContext* context,
                                      absl::string_view method, const Request& request,
                                      Start start) {
  auto* const reactor = new UnaryCall(rpc, *context, method);  // gRPC's, and its users'
  const std::shared_ptr<UnaryCall> call = reactor->self();
  if (const absl::Status admitted = call->Admit(rpc, request); !admitted.ok()) {
    call->Reply(admitted);
  } else if (const absl::Status started = start(call); !started.ok()) {
    call->Reply(started);
  }
  return reactor;
}

}  // namespace braid
