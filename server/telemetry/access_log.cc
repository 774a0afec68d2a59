#include "server/telemetry/access_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/base/text.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// Calls `add(name, value)` for each text field that is not empty.
template <typename Add>
void ForEachText(const AccessEntry& entry, const CallFacts& facts, Add add) {
  const std::pair<absl::string_view, absl::string_view> names[] = {
      {"model", entry.model},           {"identity", entry.identity}, {"peer", entry.peer},
      {"request_id", facts.request_id}, {"trace_id", entry.trace_id},
  };
  for (const auto& [name, value] : names) {
    if (!value.empty()) {
      add(name, Excerpt(value));
    }
  }
}

std::string ToText(const AccessEntry& entry, const CallFacts& facts) {
  std::string line =
      absl::StrCat(entry.method, " ", entry.code, " ",
                   absl::FormatDuration(absl::Trunc(entry.duration, absl::Microseconds(1))));
  ForEachText(entry, facts, [&line](absl::string_view name, absl::string_view value) {
    absl::StrAppend(&line, " ", name, "=", QuotedExcerpt(value));
  });
  if (facts.rows > 0) {
    absl::StrAppend(&line, " rows=", facts.rows);
  }
  if (facts.chunks > 0) {
    absl::StrAppend(&line, " chunks=", facts.chunks);
  }
  for (const auto& [phase, time] : facts.phases) {
    absl::StrAppend(&line, " ", phase, "=",
                    absl::FormatDuration(absl::Trunc(time, absl::Microseconds(1))));
  }
  return line;
}

// Returns `text` as a JSON string. Plain text, the usual case, takes the fast path.
std::string JsonString(absl::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '"' && c != '\\';
  });
  using Json = nlohmann::json;
  return plain ? absl::StrCat("\"", text, "\"")
               : Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Returns the members of a JSON object, without its braces.
std::string ToJson(const AccessEntry& entry, const CallFacts& facts) {
  std::string json =
      absl::StrCat("\"method\":", JsonString(entry.method), ",\"code\":", JsonString(entry.code),
                   ",\"duration_seconds\":", absl::ToDoubleSeconds(entry.duration));
  ForEachText(entry, facts, [&json](absl::string_view name, absl::string_view value) {
    absl::StrAppend(&json, ",\"", name, "\":", JsonString(value));
  });
  if (facts.rows > 0) {
    absl::StrAppend(&json, ",\"rows\":", facts.rows);
  }
  if (facts.chunks > 0) {
    absl::StrAppend(&json, ",\"chunks\":", facts.chunks);
  }
  absl::string_view between = ",\"phase_seconds\":{";
  for (const auto& [phase, time] : facts.phases) {
    absl::StrAppend(&json, between, JsonString(phase), ":", absl::ToDoubleSeconds(time));
    between = ",";
  }
  absl::StrAppend(&json, facts.phases.empty() ? "" : "}");
  return json;
}

bool IsLowerHex(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
}

}  // namespace

bool AccessLogOn() { return Log(LogModule::kAccess).should_log(spdlog::level::info); }

void LogAccess(const AccessEntry& entry, const CallFacts& facts) {
  Log(LogModule::kAccess)
      .info("{}", GetLogFormat() == LogFormat::kJson ? ToJson(entry, facts) : ToText(entry, facts));
}

absl::string_view TraceIdOf(absl::string_view traceparent) {
  // Format: version "-" trace-id "-" parent-id "-" flags. Later versions may append fields.
  constexpr size_t kVersion = 2;
  constexpr size_t kTraceId = 32;
  constexpr size_t kMinLength = 55;
  if (traceparent.size() < kMinLength || traceparent[kVersion] != '-' ||
      traceparent[kVersion + 1 + kTraceId] != '-') {
    return {};
  }
  const absl::string_view id = traceparent.substr(kVersion + 1, kTraceId);
  const bool valid = std::all_of(id.begin(), id.end(), IsLowerHex) &&
                     id.find_first_not_of('0') != absl::string_view::npos;
  return valid ? id : absl::string_view();
}

}  // namespace braid
