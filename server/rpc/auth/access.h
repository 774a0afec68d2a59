// Authenticates and authorizes the caller of an RPC, and writes its audit records.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "server/access/access_control.h"
#include "server/base/status.h"
#include "server/rpc/auth/audit_details.h"
#include "server/rpc/auth/method_rules.h"
#include "server/rpc/auth/request_names.h"
#include "server/rpc/auth/string_limits.h"
#include "server/telemetry/audit_log.h"
#include "server/telemetry/metrics.h"

namespace braid {

// Shared by all calls; everything it points to outlives them.
struct CallAccess {
  const AccessControl* control = nullptr;  // null: no authentication
  // Returns the model of a trainer, or NOT_FOUND.
  std::function<absl::StatusOr<std::string>(absl::string_view trainer)> model_of;
  bool limits_clients = false;  // admission has limits per client
  Metrics* metrics = nullptr;   // counts denied calls
};

// The caller of one RPC. Thread-compatible; owned by the call.
class Caller {
 public:
  Caller(const CallAccess& access, const grpc::CallbackServerContext& context,
         absl::string_view method);

  // Authorizes a stream before its first message: the caller needs the role for some model.
  // UNAUTHENTICATED or PERMISSION_DENIED.
  absl::Status CheckStart();
  // Authorizes the call with `request`, then checks its strings. UNAUTHENTICATED,
  // PERMISSION_DENIED, or INVALID_ARGUMENT if a string is too long. Call for each message of a
  // stream, because the identities may have changed.
  template <typename Request>
  absl::Status Check(const Request& request) {
    const Need need = NeedOf(request, rule_->need);
    if (Audited(need)) {
      details_ = DetailsOf(request, rule_->subject);
    }
    BRAID_RETURN_IF_ERROR(CheckNames(need, NamesIn(request, rule_->subject)));
    return CheckStrings(request);
  }
  absl::Status CheckNames(const Names& names) { return CheckNames(rule_->need, names); }
  // Model named by the last authorized request, directly or through a trainer. Empty if it names
  // none, or an unknown trainer.
  const std::string& model() const { return model_; }
  // For the access log. The trace ID is set only if the log was on when the call arrived.
  const std::string& identity() const { return first_identity_; }
  const std::string& peer() const { return peer_; }
  const std::string& trace_id() const { return trace_id_; }

  // Permissions as of the last check, for methods that list models.
  bool Sees(absl::string_view model) const;
  bool May(Role role, absl::string_view model) const;
  bool MayAll(Role role) const;
  // PERMISSION_DENIED unless May(). For requests that name their model indirectly.
  absl::Status Require(Role role, absl::string_view model) const;

  // Key for the limits per client: the identity, or the address without port. Empty without limits.
  std::string client() const;

  // Sets a detail of the audit record, for example the version that the server chose. Replaces the
  // requested value of the same name.
  void RecordAudit(const std::string& name, AuditValue value);
  // Writes the audit record, if the call is audited.
  void Audit(const absl::Status& outcome) const;
  // Writes the audit record of one operation of a stream.
  void AuditOperation(absl::string_view operation, const AuditDetails& details,
                      const absl::Status& outcome) const;

 private:
  absl::Status CheckNames(Need need, const Names& names);
  // CheckNames() for a method that requires an identity.
  absl::Status CheckCaller(Need need, const Names& names);
  absl::Status CheckRole(Role role, const Names& names) const;
  // True if a call that needs `need` is audited.
  bool Audited(Need need) const;
  // Looks up the identity, again if the table was reloaded.
  absl::Status Identify();
  absl::Status MissingRole(Role role, const std::string& for_what) const;

  const std::string peer_;
  const CallAccess* access_;
  const MethodRule* rule_;
  Credentials credentials_;
  bool bad_token_ = false;  // malformed header
  int64_t generation_ = -1;
  std::shared_ptr<const Identity> identity_;  // null: unknown, or no authentication

  std::string model_;

  // For the logs.
  bool audited_ = false;
  std::string first_identity_;
  std::string trace_id_;
  std::string audited_model_;
  std::string trainer_;
  AuditDetails details_;
};

}  // namespace braid
