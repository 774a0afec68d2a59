// The server's log: one stream of lines on stdout, a logger with a level of its own for each
// module.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "spdlog/logger.h"

namespace braid {

enum class LogModule { kServer, kRpc, kModels, kTraining, kDevices, kStorage, kAccess, kAudit };
inline constexpr size_t kLogModules = 8;

enum class LogFormat { kText, kJson };

// One a module. What kAudit logs no level silences.
using LogLevels = std::array<spdlog::level::level_enum, kLogModules>;

// info, but for the access log, which is off.
LogLevels DefaultLogLevels();

// "warning", of all modules but the access log; "training=debug,access=info", of those named: what
// is not said stays as in `levels`. INVALID_ARGUMENT says what makes no sense, and what would.
absl::StatusOr<LogLevels> ParseLogLevels(absl::string_view text, LogLevels levels);
// What ParseLogLevels() reads, every module named.
std::string LogLevelsText(const LogLevels& levels);

// Logs of `module`. Any thread. Characters that end or hide a line are escaped. Lines of kAudit are
// LogAudit()'s: where the format is JSON they are the members of an object.
spdlog::logger& Log(LogModule module);

// A line of kAccess, of now, whatever its level. The thread that writes it, within a second, asks
// `message` for its text, so that no call waits for that. Where the format is JSON it is the
// members of an object. Any thread.
void LogAccessLater(absl::AnyInvocable<std::string()> message);

// From now on lines are in `format`: text until then. Times are UTC.
void SetLogFormat(LogFormat format);
LogFormat GetLogFormat();
void SetLogLevels(const LogLevels& levels);
LogLevels GetLogLevels();
// Writes what waits, and ends the access log.
void StopLog();

}  // namespace braid
