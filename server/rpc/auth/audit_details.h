// What an audited request asks for beside the model and the trainer that it names.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>

#include "server/rpc/auth/method_rules.h"
#include "server/rpc/inference/settings.h"
#include "server/telemetry/audit_log.h"

namespace braid {

// What a request leaves to the server is none of it.
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
  if constexpr (requires { request.checkpoint(); }) {
    add("checkpoint", request.checkpoint());
  }
  if constexpr (requires { request.name(); }) {
    // What the server as a whole has by name is shared memory.
    add("region", subject == Subject::kServer ? request.name() : "");
  }
  if constexpr (requires { request.key(); }) {
    add("key", request.key());
  }
  return details;
}

}  // namespace braid
