#include "server/telemetry/log.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/base/text.h"
#include "spdlog/async.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/base_sink.h"

namespace braid {
namespace {

using spdlog::level::level_enum;

constexpr std::array<const char*, kLogModules> kModuleNames = {
    "server", "rpc", "models", "training", "devices", "storage", "jobs", "access", "audit"};
constexpr size_t kAccess = static_cast<size_t>(LogModule::kAccess);
constexpr size_t kAudit = static_cast<size_t>(LogModule::kAudit);
constexpr std::array<std::pair<const char*, level_enum>, 7> kLevelNames = {
    {{"trace", level_enum::trace},
     {"debug", level_enum::debug},
     {"info", level_enum::info},
     {"warning", level_enum::warn},
     {"error", level_enum::err},
     {"critical", level_enum::critical},
     {"off", level_enum::off}}};

// Longest time that an audited call, or a server that exits, waits for the log.
constexpr absl::Duration kMaxFlushTime = absl::Seconds(1);

absl::string_view ViewOf(const spdlog::string_view_t& text) { return {text.data(), text.size()}; }

// Ranges of characters that end a line, move the cursor, change the text direction or are
// invisible: Unicode's control, line separator and format characters.
constexpr std::array<std::pair<char32_t, char32_t>, 13> kHidden = {{{0x00, 0x1F},
                                                                    {0x7F, 0x9F},
                                                                    {0xAD, 0xAD},
                                                                    {0x61C, 0x61C},
                                                                    {0x180E, 0x180E},
                                                                    {0x200B, 0x200F},
                                                                    {0x2028, 0x202E},
                                                                    {0x2060, 0x206F},
                                                                    {0xFE00, 0xFE0F},
                                                                    {0xFEFF, 0xFEFF},
                                                                    {0xFFF9, 0xFFFB},
                                                                    {0xE0000, 0xE007F},
                                                                    {0xE0100, 0xE01EF}}};

struct Character {
  size_t bytes = 1;
  bool hidden = true;
};

// Returns the first character of UTF-8 `text`; for invalid UTF-8, one hidden byte.
Character FirstCharacter(absl::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (absl::ascii_isprint(first)) {
    return {1, false};
  }
  if (first >= 0x80 && first < 0xC0) {
    return {};
  }
  const size_t bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t code = bytes == 1 ? first : first & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const unsigned next = i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
    if ((next & 0xC0) != 0x80) {
      return {};
    }
    code = code << 6 | (next & 0x3F);
  }
  return {bytes, std::any_of(kHidden.begin(), kHidden.end(), [code](const auto& range) {
            return range.first <= code && code <= range.second;
          })};
}

// Formats the message in one line of visible characters.
class TextMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&,
              spdlog::memory_buf_t& out) override {
    absl::string_view rest = ViewOf(line.payload);
    while (!rest.empty()) {
      const Character next = FirstCharacter(rest);
      const absl::string_view bytes = rest.substr(0, next.bytes);
      if (next.hidden) {
        const std::string escaped = absl::CHexEscape(bytes);
        out.append(escaped.data(), escaped.data() + escaped.size());
      } else {
        out.append(bytes.data(), bytes.data() + bytes.size());
      }
      rest.remove_prefix(next.bytes);
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<TextMessage>();
  }
};

// Returns true if messages of `module` are members of a JSON object already.
bool LogsMembers(absl::string_view module) {
  return module == kModuleNames[kAccess] || module == kModuleNames[kAudit];
}

// Formats the message as members of the line's JSON object.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const absl::string_view payload = ViewOf(line.payload);
    std::string members(payload);
    if (!LogsMembers(ViewOf(line.logger_name))) {
      using Json = nlohmann::json;
      members = absl::StrCat("\"message\":",
                             Json(members).dump(-1, ' ', true, Json::error_handler_t::replace));
    }
    out.append(members.data(), members.data() + members.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

std::unique_ptr<spdlog::formatter> MakeFormatter(LogFormat format) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<TextMessage>('T').add_flag<JsonMessage>('J');
  formatter->set_pattern(format == LogFormat::kText
                             ? "%Y-%m-%dT%H:%M:%S.%eZ %l %n: %T"
                             : R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","module":"%n",%J})");
  return formatter;
}

// Sink that writes lines to stdout. Only the log's thread writes. spdlog's own sinks write to a
// FILE, and a process that exits would wait for one whose write is stuck.
class StdoutSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit StdoutSink(spdlog::details::thread_pool* pool) : pool_(*pool) {}

  // True from the time when a caller waited in vain until the next line is written.
  std::atomic<bool>& stuck() { return stuck_; }

 private:
  void sink_it_(const spdlog::details::log_msg& line) override {
    Write(line);
    ReportDropped();
  }
  void flush_() override {}

  void Write(const spdlog::details::log_msg& line) {
    spdlog::memory_buf_t bytes;
    formatter_->format(line, bytes);
    absl::string_view rest(bytes.data(), bytes.size());
    while (!rest.empty()) {
      const ssize_t written = write(STDOUT_FILENO, rest.data(), rest.size());
      if (written >= 0) {
        rest.remove_prefix(static_cast<size_t>(written));
      } else if (errno == EAGAIN) {
        pollfd writable = {STDOUT_FILENO, POLLOUT, 0};
        poll(&writable, 1, /*timeout=*/-1);
      } else if (errno != EINTR) {
        break;  // the reader is gone
      }
    }
    stuck_ = false;
  }

  // Reports when the queue is empty again, and once per second while it is not.
  void ReportDropped() {
    const size_t dropped = pool_.overrun_counter();
    const auto now = spdlog::log_clock::now();
    if (dropped == reported_ ||
        (pool_.queue_size() > 0 && now - last_report_ < std::chrono::seconds(1))) {
      return;
    }
    const std::string message =
        absl::StrCat("log: dropped ", dropped - reported_, " lines (stdout was not read in time)");
    Write({now, {}, kModuleNames[0], level_enum::warn, message});
    reported_ = dropped;
    last_report_ = now;
  }

  spdlog::details::thread_pool& pool_;
  std::atomic<bool> stuck_ = false;
  // Used by the log's thread.
  size_t reported_ = 0;
  spdlog::log_clock::time_point last_report_;
};

// Sink that tells when the log's thread has come to its flush request.
class FlushMarker final : public spdlog::sinks::sink {
 public:
  bool WaitUntilReached(absl::Duration timeout) const {
    return reached_.WaitForNotificationWithTimeout(timeout);
  }

  void log(const spdlog::details::log_msg&) override {}
  void flush() override { reached_.Notify(); }
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  absl::Notification reached_;
};

// Thread-safe.
class Loggers {
 public:
  Loggers() {
    const LogLevels levels = DefaultLogLevels();
    SetFormat(LogFormat::kText);
    for (size_t m = 0; m < kLogModules; ++m) {
      loggers_[m] = MakeLogger(kModuleNames[m], sink_);
      loggers_[m]->set_level(levels[m]);
    }
  }

  spdlog::logger& logger(size_t module) { return *loggers_[module]; }
  LogFormat format() const { return format_; }

  void SetFormat(LogFormat format) {
    Flush();  // lines that wait have the old format
    sink_->set_formatter(MakeFormatter(format));
    format_ = format;
  }

  void Flush() {
    const auto marker = std::make_shared<FlushMarker>();
    MakeLogger("flush", marker)->flush();
    const bool stuck = sink_->stuck();
    if (!marker->WaitUntilReached(stuck ? absl::ZeroDuration() : kMaxFlushTime)) {
      sink_->stuck() = true;
    }
  }

 private:
  std::shared_ptr<spdlog::logger> MakeLogger(const char* name, spdlog::sink_ptr sink) {
    return std::make_shared<spdlog::async_logger>(name, std::move(sink), pool_,
                                                  spdlog::async_overflow_policy::overrun_oldest);
  }

  const std::shared_ptr<spdlog::details::thread_pool> pool_ =
      std::make_shared<spdlog::details::thread_pool>(
          spdlog::details::default_async_q_size, /*threads_n=*/1,
          [] { pthread_setname_np(pthread_self(), "log"); });
  const std::shared_ptr<StdoutSink> sink_ = std::make_shared<StdoutSink>(pool_.get());
  std::array<std::shared_ptr<spdlog::logger>, kLogModules> loggers_;
  std::atomic<LogFormat> format_ = LogFormat::kText;
};

// Never destroyed: destructors of static objects log too, and the log's thread may be stuck in a
// write, which joining it would wait for.
Loggers& TheLoggers() {
  static auto* const kLoggers = new Loggers;
  return *kLoggers;
}

std::string LevelNames() {
  return absl::StrJoin(kLevelNames, ", ", [](std::string* out, const auto& level) {
    absl::StrAppend(out, level.first);
  });
}

const char* LevelName(level_enum level) {
  return std::find_if(kLevelNames.begin(), kLevelNames.end(),
                      [level](const auto& known) { return known.second == level; })
      ->first;
}

absl::StatusOr<level_enum> ParseLevel(absl::string_view text) {
  for (const auto& [name, level] : kLevelNames) {
    if (text == name) {
      return level;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown level '", Excerpt(text), "' (expected ", LevelNames(), ")"));
}

}  // namespace

LogLevels DefaultLogLevels() {
  LogLevels levels;
  levels.fill(level_enum::info);
  levels[kAccess] = level_enum::off;
  return levels;
}

absl::StatusOr<LogLevels> ParseLogLevels(absl::string_view text, LogLevels levels) {
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const bool all = !absl::StrContains(part, '=');
    const absl::StatusOr<level_enum> level = ParseLevel(all ? part : sides.second);
    if (!level.ok()) {
      return level.status();
    }
    const auto* const end = kModuleNames.begin() + kAudit;
    const auto* const named = std::find(kModuleNames.begin(), end, sides.first);
    if (!all && named == end) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown log module '", Excerpt(sides.first), "' (expected ",
                       absl::StrJoin(kModuleNames.begin(), end, ", "), ")"));
    }
    if (all) {
      std::fill_n(levels.begin(), kAccess, *level);
    } else {
      levels[static_cast<size_t>(named - kModuleNames.begin())] = *level;
    }
  }
  return levels;
}

std::string LogLevelsText(const LogLevels& levels) {
  std::vector<std::string> parts;
  for (size_t m = 0; m < kAudit; ++m) {
    parts.push_back(absl::StrCat(kModuleNames[m], "=", LevelName(levels[m])));
  }
  return absl::StrJoin(parts, ",");
}

spdlog::logger& Log(LogModule module) { return TheLoggers().logger(static_cast<size_t>(module)); }

void SetLogFormat(LogFormat format) { TheLoggers().SetFormat(format); }

LogFormat GetLogFormat() { return TheLoggers().format(); }

void SetLogLevels(const LogLevels& levels) {
  for (size_t m = 0; m < kAudit; ++m) {
    TheLoggers().logger(m).set_level(levels[m]);
  }
}

LogLevels GetLogLevels() {
  LogLevels levels;
  for (size_t m = 0; m < kLogModules; ++m) {
    levels[m] = TheLoggers().logger(m).level();
  }
  return levels;
}

void FlushLog() { TheLoggers().Flush(); }

void StopLog() {
  Log(LogModule::kAccess).set_level(level_enum::off);
  FlushLog();
}

}  // namespace braid
