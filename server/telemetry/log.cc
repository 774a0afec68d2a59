#include "server/telemetry/log.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"
#include "server/base/text.h"
#include "server/telemetry/log_output.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/base_sink.h"

namespace braid {
namespace {

using spdlog::level::level_enum;

constexpr std::array<const char*, kLogModules> kModuleNames = {
    "server", "rpc", "models", "training", "devices", "storage", "access", "audit"};
// Those before have levels that can be changed.
constexpr size_t kAudit = static_cast<size_t>(LogModule::kAudit);
constexpr std::array<std::pair<const char*, level_enum>, 7> kLevelNames = {
    {{"trace", level_enum::trace},
     {"debug", level_enum::debug},
     {"info", level_enum::info},
     {"warning", level_enum::warn},
     {"error", level_enum::err},
     {"critical", level_enum::critical},
     {"off", level_enum::off}}};

constexpr size_t kAccess = static_cast<size_t>(LogModule::kAccess);
// Lines of the access log that wait to be written; beyond, they are lost.
constexpr size_t kMaxWaiting = size_t{1} << 16;
// As many are written at once, while the caches have them still; fewer after a while.
constexpr size_t kWorthWriting = 256;
constexpr absl::Duration kAWhile = absl::Seconds(1);
// For who reads the log: a server that ends, or a call that is audited, waits no longer for it.
constexpr absl::Duration kPatience = absl::Seconds(1);

absl::string_view ViewOf(const spdlog::string_view_t& text) { return {text.data(), text.size()}; }

// The first and the last of characters that end a line, move the cursor, turn the order of what
// follows or cannot be seen: Unicode's controls, separators of lines, and marks of format.
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

// The first one of UTF-8 `text`; of what is none, a byte that cannot be seen.
Character FirstOf(absl::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (absl::ascii_isprint(first)) {
    return {1, false};  // as nearly all are
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

// The message in one line of characters that can be seen.
class TextMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&,
              spdlog::memory_buf_t& out) override {
    absl::string_view rest = ViewOf(line.payload);
    while (!rest.empty()) {
      const Character next = FirstOf(rest);
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

// Whether what it logs is made of members already, where the format is JSON.
bool LogsMembers(absl::string_view module) {
  return module == kModuleNames[kAccess] || module == kModuleNames[kAudit];
}

// The message as members of the line's JSON object.
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

absl::string_view ViewOf(const spdlog::memory_buf_t& bytes) { return {bytes.data(), bytes.size()}; }

class OutputSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit OutputSink(LogOutput* output) : output_(output) {}

 private:
  void sink_it_(const spdlog::details::log_msg& line) override {
    spdlog::memory_buf_t bytes;
    formatter_->format(line, bytes);
    output_->Write(ViewOf(bytes));
  }
  void flush_() override {}

  LogOutput* const output_;
};

// Lines of the access log, made and written together, so that a call waits neither for the disk nor
// for its text.
class AccessLines {
 public:
  using Message = absl::AnyInvocable<std::string()>;

  explicit AccessLines(LogOutput* output) : output_(output) {}

  void Add(Message message) ABSL_LOCKS_EXCLUDED(mu_) {
    const spdlog::log_clock::time_point now = spdlog::log_clock::now();
    const absl::MutexLock lock(&mu_);
    if (waiting_.size() < kMaxWaiting) {
      waiting_.push_back({now, std::move(message)});
    }
    if (waiting_.size() == kWorthWriting) {
      many_.Signal();
    }
  }
  // Until it is time to write.
  void Wait() ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    many_.WaitWithTimeout(&mu_, kAWhile);
  }
  void Write() ABSL_LOCKS_EXCLUDED(mu_, write_mu_) {
    const absl::MutexLock one_at_a_time(&write_mu_);
    std::vector<Line> lines;
    {
      const absl::MutexLock lock(&mu_);
      std::swap(lines, waiting_);
      waiting_.reserve(lines.size());  // as many as there will be, it seems
    }
    spdlog::memory_buf_t bytes;
    for (Line& line : lines) {
      const std::string message = line.message();
      formatter_->format(
          spdlog::details::log_msg(line.time, {}, kModuleNames[kAccess], level_enum::info, message),
          bytes);
    }
    output_->Write(ViewOf(bytes));
  }
  void SetFormatter(std::unique_ptr<spdlog::formatter> formatter) ABSL_LOCKS_EXCLUDED(write_mu_) {
    const absl::MutexLock lock(&write_mu_);
    formatter_ = std::move(formatter);
  }

 private:
  struct Line {
    spdlog::log_clock::time_point time;
    Message message;
  };

  LogOutput* const output_;

  absl::Mutex mu_;
  absl::CondVar many_;
  std::vector<Line> waiting_ ABSL_GUARDED_BY(mu_);
  absl::Mutex write_mu_;
  std::unique_ptr<spdlog::formatter> formatter_ ABSL_GUARDED_BY(write_mu_);
};

struct Loggers {
  Loggers() {
    const LogLevels levels = DefaultLogLevels();
    sink->set_formatter(MakeFormatter(LogFormat::kText));
    access.SetFormatter(MakeFormatter(LogFormat::kText));
    for (size_t m = 0; m < kLogModules; ++m) {
      of_module[m] = std::make_shared<spdlog::logger>(kModuleNames[m], sink);
      of_module[m]->flush_on(level_enum::info);
      of_module[m]->set_level(levels[m]);
    }
    std::thread([this] {
      pthread_setname_np(pthread_self(), "log");
      Write();
    }).detach();
  }

  // As long as the process.
  [[noreturn]] void Write() {
    while (true) {
      access.Wait();
      access.Write();
      if (const int64_t lost = output.TakeLost(); lost > 0) {
        of_module[static_cast<size_t>(LogModule::kServer)]->warn(
            "{} lines of the log were lost: nobody read it", lost);
      }
    }
  }

  LogOutput output{STDOUT_FILENO, kPatience};
  const std::shared_ptr<spdlog::sinks::sink> sink = std::make_shared<OutputSink>(&output);
  AccessLines access{&output};
  std::array<std::shared_ptr<spdlog::logger>, kLogModules> of_module;
  std::atomic<LogFormat> format = LogFormat::kText;
};

// Lives as long as the process: what is destroyed at its end logs too.
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
      absl::StrCat("'", Excerpt(text), "' is no level; expected one of ", LevelNames()));
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
          absl::StrCat("'", Excerpt(sides.first), "' is no module of the log; expected one of ",
                       absl::StrJoin(kModuleNames.begin(), end, ", ")));
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

spdlog::logger& Log(LogModule module) {
  return *TheLoggers().of_module[static_cast<size_t>(module)];
}

void LogAccessLater(absl::AnyInvocable<std::string()> message) {
  TheLoggers().access.Add(std::move(message));
}

void SetLogFormat(LogFormat format) {
  TheLoggers().sink->set_formatter(MakeFormatter(format));
  TheLoggers().access.SetFormatter(MakeFormatter(format));
  TheLoggers().format = format;
}

LogFormat GetLogFormat() { return TheLoggers().format; }

void SetLogLevels(const LogLevels& levels) {
  for (size_t m = 0; m < kAudit; ++m) {
    TheLoggers().of_module[m]->set_level(levels[m]);
  }
}

LogLevels GetLogLevels() {
  LogLevels levels;
  for (size_t m = 0; m < kLogModules; ++m) {
    levels[m] = TheLoggers().of_module[m]->level();
  }
  return levels;
}

void StopLog() {
  Loggers& loggers = TheLoggers();
  loggers.of_module[kAccess]->set_level(level_enum::off);
  loggers.access.Write();
  loggers.sink->flush();
}

}  // namespace braid
