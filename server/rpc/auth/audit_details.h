// Details of a request for its audit record, other than model and trainer.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>

#include "server/rpc/auth/method_rules.h"
#include "server/rpc/inference/settings.h"
#include "server/telemetry/audit_log.h"

namespace braid {

// Returns the details that the request sets, for any request type.
template <typename Request>
AuditDetails DetailsOf(const Request& request, Subject subject) {
  AuditDetails details;
  const auto add = [&details](const char* name, const std::string& value) {
    if (!value.empty()) {
      details.emplace_back(name, value);
    }
  };
  if constexpr (requires { SettingsText(request); }) {
    add("settings", SettingsText(request));
  }
  if constexpr (requires {
                  { request.version() } -> std::same_as<int64_t>;
                }) {
    if (request.version() != 0) {
      details.emplace_back("version", request.version());
    }
  }
  if constexpr (requires { request.label(); }) {
    add("label", request.label());
  }
  if constexpr (requires { request.checkpoint(); }) {
    add("checkpoint", request.checkpoint());
  }
  if constexpr (requires { request.new_name(); }) {
    add("new_name", request.new_name());
  }
  if constexpr (requires {
                  { request.has_step() } -> std::same_as<bool>;
                  { request.step() } -> std::same_as<int64_t>;
                }) {
    if (request.has_step()) {
      details.emplace_back("step", request.step());
    }
  }
  if constexpr (requires { request.name(); }) {
    // Names at server level are shared memory regions.
    add("region", subject == Subject::kServer ? request.name() : "");
  }
  if constexpr (requires { request.key(); }) {
    add("key", request.key());
  }
  if constexpr (requires { request.id(); }) {
    add("id", request.id());
  }
  if constexpr (requires { request.path(); }) {
    add("path", request.path());
  }
  if constexpr (requires { request.dataset(); }) {
    add("dataset", request.dataset());
  }
  return details;
}

}  // namespace braid
