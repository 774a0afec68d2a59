#include "server/rpc/auth/access.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/grpc_security_constants.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/telemetry/access_log.h"

namespace braid {
namespace {

enum class Denial { kNoCredentials, kBadCredentials, kRole };

absl::string_view ReasonName(Denial why) {
  switch (why) {
    case Denial::kNoCredentials:
      return "no_credentials";
    case Denial::kBadCredentials:
      return "bad_credentials";
    case Denial::kRole:
      return "role";
  }
  return "";
}

// Counts a denied call and returns its status.
absl::Status Deny(const CallAccess& access, Denial why, absl::string_view message) {
  access.metrics->CountDenied(ReasonName(why));
  return why == Denial::kRole ? absl::PermissionDeniedError(message)
                              : absl::UnauthenticatedError(message);
}

absl::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

// Returns the token of "Bearer TOKEN"; empty if `value` has another form.
absl::string_view TokenOf(absl::string_view value) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(value, kScheme)) {
    return {};
  }
  return absl::StripAsciiWhitespace(value.substr(kScheme.size()));
}

std::vector<std::string> CertificateNames(const grpc::AuthContext& context) {
  std::vector<std::string> names;
  for (const char* property : {GRPC_X509_SAN_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : context.FindPropertyValues(property)) {
      names.emplace_back(name.data(), name.size());
    }
    if (!names.empty()) {
      break;
    }
  }
  return names;
}

}  // namespace

Caller::Caller(const CallAccess& access, const grpc::CallbackServerContext& context,
               absl::string_view method)
    : peer_(context.peer()), access_(&access), rule_(&RuleOf(method)) {
  if (AccessLogOn()) {
    const auto traceparent = context.client_metadata().find("traceparent");
    if (traceparent != context.client_metadata().end()) {
      trace_id_ = std::string(TraceIdOf(View(traceparent->second)));
    }
  }
  if (access.control == nullptr || rule_->need == Need::kOpen) {
    return;
  }
  if (access.control->takes_tokens()) {
    const auto [begin, end] = context.client_metadata().equal_range("authorization");
    if (begin != end) {
      const absl::string_view token = TokenOf(View(begin->second));
      bad_token_ = token.empty() || std::next(begin) != end;
      credentials_.token = Sha256(token);
    }
  }
  if (access.control->takes_certificates()) {
    credentials_.names = CertificateNames(*context.auth_context());
  }
}

absl::Status Caller::Identify() {
  const int64_t generation = access_->control->generation();
  if (generation != generation_) {
    identity_ = bad_token_ ? nullptr : access_->control->Identify(credentials_);
    generation_ = generation;
  }
  if (identity_ != nullptr) {
    if (first_identity_.empty()) {
      first_identity_ = identity_->name;
    }
    return absl::OkStatus();
  }
  if (credentials_.token) {
    return Deny(*access_, Denial::kBadCredentials,
                "unknown token (expected one `authorization: Bearer TOKEN` header with a token of "
                "--auth_tokens)");
  }
  if (!credentials_.names.empty()) {
    return Deny(*access_, Denial::kBadCredentials,
                "unknown client certificate (its name is not in --auth_certificates)");
  }
  return Deny(*access_, Denial::kNoCredentials,
              absl::StrCat("the call has no credentials (expected ",
                           access_->control->takes_tokens() ? "`authorization: Bearer TOKEN`"
                                                            : "a client certificate",
                           ")"));
}

bool Caller::Audited(Need need) const {
  const bool needs_role = access_->control != nullptr && need == Need::kTrain;
  return needs_role || (rule_->audited && (need == Need::kAdmin || rule_->need != Need::kAnyone));
}

absl::Status Caller::CheckStart() {
  audited_ = Audited(rule_->need);
  if (access_->control == nullptr || rule_->need == Need::kOpen) {
    return absl::OkStatus();
  }
  BRAID_RETURN_IF_ERROR(Identify());
  const Role role = rule_->need == Need::kAdmin   ? Role::kAdmin
                    : rule_->need == Need::kTrain ? Role::kTrain
                                                  : Role::kInfer;
  return identity_->MaySome(role) ? absl::OkStatus() : MissingRole(role, "");
}

absl::Status Caller::CheckNames(Need need, const Names& names) {
  if (Audited(need)) {
    audited_ = true;
    audited_model_ = std::string(names.model);
    trainer_ = std::string(names.trainer);
  }
  if (access_->control != nullptr && need != Need::kOpen) {
    BRAID_RETURN_IF_ERROR(CheckCaller(need, names));
  }
  model_ = names.model.empty() && !names.trainer.empty()
               ? access_->model_of(names.trainer).value_or("")
               : std::string(names.model);
  return absl::OkStatus();
}

absl::Status Caller::CheckCaller(Need need, const Names& names) {
  BRAID_RETURN_IF_ERROR(Identify());
  switch (need) {
    case Need::kOpen:
    case Need::kAnyone:
      return absl::OkStatus();
    case Need::kSee:
      return names.model.empty() || identity_->Sees(names.model)
                 ? absl::OkStatus()
                 : Deny(*access_, Denial::kRole,
                        absl::StrCat(rule_->method, ": '", identity_->name,
                                     "' has no role for model '", Excerpt(names.model),
                                     "' (expected infer, train or admin)"));
    case Need::kInfer:
      return CheckRole(Role::kInfer, names);
    case Need::kTrain:
      return CheckRole(Role::kTrain, names);
    case Need::kAdmin:
      return CheckRole(Role::kAdmin, names);
  }
  return MissingRole(Role::kAdmin, "");
}

absl::Status Caller::CheckRole(Role role, const Names& names) const {
  if (identity_->MayAll(role)) {
    return absl::OkStatus();
  }
  switch (rule_->subject) {
    case Subject::kServer:
      return MissingRole(role, " for every model");
    case Subject::kModel:
      return identity_->May(role, names.model)
                 ? absl::OkStatus()
                 : MissingRole(role, absl::StrCat(" for model '", Excerpt(names.model), "'"));
    case Subject::kTrainer:
      break;
  }
  if (!identity_->MaySome(role)) {
    return MissingRole(role, "");
  }
  // Rejects unknown trainers here: the method might find their files, which have no model.
  BRAID_ASSIGN_OR_RETURN(const std::string model, access_->model_of(names.trainer));
  if (!identity_->May(role, model)) {
    return MissingRole(role,
                       absl::StrCat(" for the model of trainer '", Excerpt(names.trainer), "'"));
  }
  return names.model.empty() || identity_->May(role, names.model)
             ? absl::OkStatus()
             : MissingRole(role, absl::StrCat(" for model '", Excerpt(names.model), "'"));
}

absl::Status Caller::MissingRole(Role role, const std::string& for_what) const {
  return Deny(*access_, Denial::kRole,
              absl::StrCat(rule_->method, ": '", Excerpt(identity_->name),
                           "' does not have the role ", RoleName(role), for_what));
}

bool Caller::Sees(absl::string_view model) const {
  return access_->control == nullptr || (identity_ != nullptr && identity_->Sees(model));
}

bool Caller::May(Role role, absl::string_view model) const {
  return access_->control == nullptr || (identity_ != nullptr && identity_->May(role, model));
}

bool Caller::MayAll(Role role) const {
  return access_->control == nullptr || (identity_ != nullptr && identity_->MayAll(role));
}

absl::Status Caller::Require(Role role, absl::string_view model) const {
  return May(role, model) ? absl::OkStatus()
                          : MissingRole(role, absl::StrCat(" for model '", Excerpt(model), "'"));
}

std::string Caller::client() const {
  if (!access_->limits_clients) {
    return {};
  }
  // The port differs between connections.
  return identity_ != nullptr ? identity_->name : peer().substr(0, peer().rfind(':'));
}

void Caller::RecordAudit(const std::string& name, AuditValue value) {
  if (!audited_) {
    return;
  }
  const auto requested = std::find_if(details_.begin(), details_.end(),
                                      [&name](const auto& detail) { return detail.first == name; });
  if (requested != details_.end()) {
    requested->second = std::move(value);
  } else {
    details_.emplace_back(name, std::move(value));
  }
}

void Caller::Audit(const absl::Status& outcome) const {
  AuditOperation(rule_->method, details_, outcome);
}

void Caller::AuditOperation(absl::string_view operation, const AuditDetails& details,
                            const absl::Status& outcome) const {
  // Unauthenticated calls are only counted, because they could fill the log.
  if (!audited_ || (access_->control != nullptr && identity_ == nullptr)) {
    return;
  }
  const std::string code = absl::StatusCodeToString(outcome.code());
  LogAudit({identity_ == nullptr ? "" : identity_->name, peer(), operation, audited_model_,
            trainer_, details, code});
}

}  // namespace braid
