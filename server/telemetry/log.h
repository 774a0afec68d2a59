// The server's log: lines on stdout, with a log level for each module.
//
// A thread of its own writes the lines, so no caller waits for stdout. If stdout is not read fast
// enough, the oldest waiting lines are dropped and their number is logged.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "spdlog/logger.h"

namespace braid {

enum class LogModule {
  kServer,
  kRpc,
  kModels,
  kTraining,
  kDevices,
  kStorage,
  kJobs,
  kAccess,
  kAudit
};
inline constexpr size_t kLogModules = 9;

enum class LogFormat { kText, kJson };

// Level of each module. The level of kAudit is always info.
using LogLevels = std::array<spdlog::level::level_enum, kLogModules>;

// Returns info for all modules except the access log, which is off.
LogLevels DefaultLogLevels();

// Parses "warning" (all modules except the access log) or "training=debug,access=info" (the named
// modules). Modules that are not named keep their level in `levels`. INVALID_ARGUMENT names an
// unknown level or module and lists the valid ones.
absl::StatusOr<LogLevels> ParseLogLevels(absl::string_view text, LogLevels levels);
// Returns the levels of all modules in the form that ParseLogLevels() reads.
std::string LogLevelsText(const LogLevels& levels);

// Returns the logger of `module`. Thread-safe; logging does not block. Control and invisible
// characters of messages are escaped. With LogFormat::kJson, messages of kAccess and kAudit must be
// the members of a JSON object: use LogAccess() and LogAudit().
spdlog::logger& Log(LogModule module);

// Sets the format of later lines, text by default. Times are UTC.
void SetLogFormat(LogFormat format);
LogFormat GetLogFormat();
void SetLogLevels(const LogLevels& levels);
LogLevels GetLogLevels();

// Waits until all lines logged so far are written, at most one second. Returns at once while stdout
// is known to be stuck.
void FlushLog();
// Turns the access log off and flushes. Called before the process ends.
void StopLog();

}  // namespace braid
