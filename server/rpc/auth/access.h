// Whether a call may be made: who its caller is, and what its method and its names need.
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

// What all calls share. All of it outlives them.
struct CallAccess {
  const AccessControl* control = nullptr;  // null: everybody may do everything
  // The model of a trainer. NOT_FOUND if there is no such trainer.
  std::function<absl::StatusOr<std::string>(absl::string_view trainer)> model_of;
  bool limits_clients = false;  // each has a limit of its own
  Metrics* metrics = nullptr;   // counts who is refused
};

// Who makes one call. Thread-compatible.
class Caller {
 public:
  Caller(const CallAccess& access, const grpc::CallbackServerContext& context,
         absl::string_view method);

  // Whether the call may be made at all, with some model: for a stream, before its first message.
  absl::Status CheckStart();
  // Whether it may be made with `request`: UNAUTHENTICATED or PERMISSION_DENIED, and, for who may,
  // INVALID_ARGUMENT if its strings are too long. For each message of a stream: what the caller may
  // do may have changed.
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
  // The model of what was last allowed, as the client names it, or of the trainer that it names;
  // empty: it names none that there is.
  const std::string& model() const { return model_; }
  // For the access log, if it was on when the call came: who called, where from, in what trace.
  const std::string& identity() const { return first_identity_; }
  const std::string& peer() const { return peer_; }
  const std::string& trace_id() const { return trace_id_; }

  // For calls that list what there is. As at the last check.
  bool Sees(absl::string_view model) const;
  bool May(Role role, absl::string_view model) const;
  bool MayAll(Role role) const;

  // For a limit: the identity, or else the address. Empty where there is no limit.
  std::string client() const;

  // For the audit: what was done, which the request may have left to the server. In place of what
  // it asked for by that `name`.
  void Did(const std::string& name, AuditValue value);
  // Tells the log of a call that is audited.
  void Audit(const absl::Status& outcome) const;
  // The same of an operation of a stream, `part`, which is one; `did`: what it did.
  void AuditPart(absl::string_view part, const AuditDetails& did,
                 const absl::Status& outcome) const;

 private:
  absl::Status CheckNames(Need need, const Names& names);
  // The same, of a caller who is asked for.
  absl::Status CheckCaller(Need need, const Names& names);
  absl::Status CheckRole(Role role, const Names& names) const;
  // Whether a call that needs `need` leaves a line in the log.
  bool Audited(Need need) const;
  // Asks again who the caller is, if that may have changed.
  absl::Status Identify();
  absl::Status Refused(Role role, const std::string& for_what) const;

  const std::string peer_;
  const CallAccess* access_;
  const MethodRule* rule_;
  Credentials credentials_;
  bool bad_token_ = false;  // what should be one cannot be
  int64_t generation_ = -1;
  std::shared_ptr<const Identity> identity_;  // null: nobody, or nobody asks

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
