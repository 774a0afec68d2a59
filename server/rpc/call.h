// Steps that all RPCs share: authorization, admission, duration, status, metrics, audit.
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
#include "server/base/task_thread.h"
#include "server/rpc/auth/access.h"
#include "server/rpc/status.h"
#include "server/telemetry/access_log.h"
#include "server/telemetry/audit_log.h"
#include "server/telemetry/metrics.h"

namespace braid {

// Shared by the services; everything it points to outlives them.
struct RpcContext {
  Admission* admission = nullptr;
  OpenStreams* streams = nullptr;
  Metrics* metrics = nullptr;
  CallAccess access;
};

// Measures an RPC from construction to End(), for the metrics and the access log.
// Thread-compatible.
class CallRecord {
 public:
  // method: a string literal.
  CallRecord(Metrics* metrics, absl::string_view method)
      : metrics_(metrics), method_(method), start_(absl::Now()) {}

  // Details for the access log. Fill in expensive ones only if AccessLogOn().
  CallFacts& facts() { return facts_; }

  // Converts `status` for gRPC and records the call. Call once, before the reply is sent. model:
  // the name that the client sent; empty if the call names no model.
  grpc::Status End(const absl::Status& status, const Caller& caller, absl::string_view model) {
    grpc::Status reply = ToGrpcStatus(status);
    const absl::Duration duration = absl::Now() - start_;
    const absl::string_view code = CodeName(reply.error_code());
    metrics_->CountRequest(method_, model, code, duration);
    if (AccessLogOn()) {
      LogAccess({method_, std::string(model), code, caller.identity(), caller.peer(),
                 caller.trace_id(), duration},
                facts_);
    }
    return reply;
  }

 private:
  Metrics* const metrics_;
  const absl::string_view method_;
  const absl::Time start_;
  CallFacts facts_;
};

// A unary call in flight. gRPC holds it until the reply is sent, and its users hold self() until
// they have called Reply(), once, from any thread.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(const RpcContext& rpc, const grpc::CallbackServerContext& context,
            absl::string_view method)
      : record_(rpc.metrics, method), caller_(rpc.access, context, method), self_(this) {}

  // Keeps the call alive. Needed while starting it, because another thread may reply before the
  // start returns.
  std::shared_ptr<UnaryCall> self() const { return self_; }
  // Authorizes the caller and checks the request's strings. UNAUTHENTICATED, PERMISSION_DENIED or
  // INVALID_ARGUMENT.
  template <typename Request>
  absl::Status Check(const Request& request) {
    return caller_.Check(request);
  }
  // Counts `bytes` as in flight until the reply. RESOURCE_EXHAUSTED or UNAVAILABLE beyond a limit.
  absl::Status Admit(const RpcContext& rpc, size_t bytes) {
    BRAID_ASSIGN_OR_RETURN(ticket_, rpc.admission->Admit(bytes, caller_.client()));
    return absl::OkStatus();
  }
  // Returns the ticket of the admitted call.
  Ticket* ticket() { return &ticket_; }
  const Caller& caller() const { return caller_; }
  CallFacts& facts() { return record_.facts(); }
  // Adds a detail to the audit. Call before Reply().
  void RecordAudit(const std::string& name, AuditValue value) {
    caller_.RecordAudit(name, std::move(value));
  }
  void Reply(const absl::Status& status) {
    // Before the reply, so that the client's next request does not exceed a limit.
    ticket_.Release();
    caller_.Audit(status);
    Finish(record_.End(status, caller_, caller_.model()));
  }

  void OnDone() override { self_.reset(); }
  // The reactor methods are short. Running them on gRPC's executor would add 10 % to a small
  // request. The default reactor of gRPC does the same.
  bool InternalInlineable() override { return true; }

 private:
  CallRecord record_;
  Caller caller_;
  Ticket ticket_;
  std::shared_ptr<UnaryCall> self_;  // gRPC's reference
};

// Handles a unary call synchronously: work() or work(caller) fills the response and returns a
// status. It must not block.
template <typename Request, typename Work>
grpc::ServerUnaryReactor* HandleUnary(const RpcContext& rpc, grpc::CallbackServerContext* context,
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

// Handles a unary call asynchronously: admits it, then start(call) passes it to another thread,
// which calls call->Reply(). If start() fails, its status is the reply.
template <typename Request, typename Start>
grpc::ServerUnaryReactor* HandleUnaryAsync(const RpcContext& rpc,
                                           const grpc::CallbackServerContext* context,
                                           absl::string_view method, const Request& request,
                                           Start start) {
  auto* const reactor = new UnaryCall(rpc, *context, method);  // owned by gRPC and its users
  const std::shared_ptr<UnaryCall> call = reactor->self();
  absl::Status status = call->Check(request);
  if (status.ok()) {
    status = call->Admit(rpc, request.ByteSizeLong());
  }
  if (status.ok()) {
    status = start(call);
  }
  if (!status.ok()) {
    call->Reply(status);
  }
  return reactor;
}

// Handles a unary call on `thread`, where it may block: work(request, response, call) fills the
// response and returns a status. gRPC keeps request and response until the reply.
template <typename Request, typename Response, typename Work>
grpc::ServerUnaryReactor* HandleUnaryOn(TaskThread* thread, const RpcContext& rpc,
                                        const grpc::CallbackServerContext* context,
                                        absl::string_view method, const Request* request,
                                        Response* response, Work work) {
  return HandleUnaryAsync(rpc, context, method, *request,
                          [=](const std::shared_ptr<UnaryCall>& call) {
                            thread->Post([=] { call->Reply(work(*request, response, *call)); });
                            return absl::OkStatus();
                          });
}

}  // namespace braid
