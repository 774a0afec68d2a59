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

// What the entry tells whose value may be anything: `add(name, value)`, of those that there are.
template <typename Add>
void ForEachName(const AccessEntry& entry, const CallFacts& facts, Add add) {
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
  ForEachName(entry, facts, [&line](absl::string_view name, absl::string_view value) {
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

// As JSON has it. Most of it is plain, and need not be looked at twice.
std::string InQuotes(absl::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '"' && c != '\\';
  });
  using Json = nlohmann::json;
  return plain ? absl::StrCat("\"", text, "\"")
               : Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// The members of a JSON object, without its braces.
std::string ToJson(const AccessEntry& entry, const CallFacts& facts) {
  std::string json =
      absl::StrCat("\"method\":", InQuotes(entry.method), ",\"code\":", InQuotes(entry.code),
                   ",\"duration_seconds\":", absl::ToDoubleSeconds(entry.duration));
  ForEachName(entry, facts, [&json](absl::string_view name, absl::string_view value) {
    absl::StrAppend(&json, ",\"", name, "\":", InQuotes(value));
  });
  if (facts.rows > 0) {
    absl::StrAppend(&json, ",\"rows\":", facts.rows);
  }
  if (facts.chunks > 0) {
    absl::StrAppend(&json, ",\"chunks\":", facts.chunks);
  }
  absl::string_view between = ",\"phase_seconds\":{";
  for (const auto& [phase, time] : facts.phases) {
    absl::StrAppend(&json, between, InQuotes(phase), ":", absl::ToDoubleSeconds(time));
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

void LogAccess(AccessEntry entry, CallFacts facts) {
  // What is too long to be told does not wait either.
  for (std::string* text : {&entry.model, &entry.identity, &entry.peer, &facts.request_id}) {
    if (const size_t told = Excerpt(*text).size(); told < text->size()) {
      *text = text->substr(0, told);
    }
  }
  LogAccessLater([entry = std::move(entry), facts = std::move(facts)] {
    return GetLogFormat() == LogFormat::kJson ? ToJson(entry, facts) : ToText(entry, facts);
  });
}

absl::string_view TraceIdOf(absl::string_view traceparent) {
  // version "-" trace-id "-" parent-id "-" flags; later versions may go on.
  constexpr size_t kVersion = 2;
  constexpr size_t kTraceId = 32;
  constexpr size_t kLeast = 55;
  if (traceparent.size() < kLeast || traceparent[kVersion] != '-' ||
      traceparent[kVersion + 1 + kTraceId] != '-') {
    return {};
  }
  const absl::string_view id = traceparent.substr(kVersion + 1, kTraceId);
  const bool valid = std::all_of(id.begin(), id.end(), IsLowerHex) &&
                     id.find_first_not_of('0') != absl::string_view::npos;
  return valid ? id : absl::string_view();
}

}  // namespace braid
