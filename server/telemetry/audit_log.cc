#include "server/telemetry/audit_log.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/base/text.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// Fits the names of all settings.
constexpr size_t kMaxDetailBytes = 1024;

std::string ToText(const AuditEntry& entry) {
  std::string line =
      absl::StrCat("identity=", QuotedExcerpt(entry.identity), " peer=", QuotedExcerpt(entry.peer),
                   " method=", entry.method, " model=", QuotedExcerpt(entry.model),
                   " trainer=", QuotedExcerpt(entry.trainer));
  for (const auto& [name, value] : entry.details) {
    absl::StrAppend(&line, " ", name, "=");
    if (const auto* number = std::get_if<int64_t>(&value)) {
      absl::StrAppend(&line, *number);
    } else {
      absl::StrAppend(&line, QuotedExcerpt(std::get<std::string>(value), kMaxDetailBytes));
    }
  }
  absl::StrAppend(&line, " outcome=", entry.outcome);
  return line;
}

// Returns the members of a JSON object, without its braces.
std::string ToJson(const AuditEntry& entry) {
  nlohmann::ordered_json line;
  const auto add = [&line](const std::string& name, absl::string_view value, size_t max_bytes) {
    if (!value.empty()) {
      line[name] = std::string(Excerpt(value, max_bytes));
    }
  };
  constexpr size_t kMaxNameBytes = 128;
  add("identity", entry.identity, kMaxNameBytes);
  add("peer", entry.peer, kMaxNameBytes);
  add("method", entry.method, kMaxNameBytes);
  add("model", entry.model, kMaxNameBytes);
  add("trainer", entry.trainer, kMaxNameBytes);
  for (const auto& [name, value] : entry.details) {
    if (const auto* number = std::get_if<int64_t>(&value)) {
      line[name] = *number;
    } else {
      add(name, std::get<std::string>(value), kMaxDetailBytes);
    }
  }
  add("outcome", entry.outcome, kMaxNameBytes);
  const std::string object =
      line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  return object.substr(1, object.size() - 2);
}

}  // namespace

void LogAudit(const AuditEntry& entry) {
  Log(LogModule::kAudit)
      .info("{}", GetLogFormat() == LogFormat::kJson ? ToJson(entry) : ToText(entry));
  FlushLog();
}

}  // namespace braid
