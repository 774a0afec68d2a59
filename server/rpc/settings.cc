#include "server/rpc/settings.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "spdlog/spdlog.h"

namespace braid {
namespace {

using LogValue = inference::LogSettingsRequest::SettingValue;

constexpr char kLogFormat[] = "ISO8601";

struct LogLevels {
  bool error = true;
  bool warning = true;
  bool info = true;
  uint32_t verbose = 0;
};

LogLevels CurrentLevels() {
  const auto level = spdlog::get_level();
  LogLevels levels;
  levels.error = level <= spdlog::level::err;
  levels.warning = level <= spdlog::level::warn;
  levels.info = level <= spdlog::level::info;
  levels.verbose = level <= spdlog::level::trace ? 2 : level <= spdlog::level::debug ? 1 : 0;
  return levels;
}

spdlog::level::level_enum LevelOf(const LogLevels& levels) {
  if (levels.verbose > 0) {
    return levels.verbose > 1 ? spdlog::level::trace : spdlog::level::debug;
  }
  return levels.info      ? spdlog::level::info
         : levels.warning ? spdlog::level::warn
         : levels.error   ? spdlog::level::err
                          : spdlog::level::off;
}

std::string FieldOf(const std::string& name) { return absl::StrCat("settings.", Excerpt(name)); }

absl::Status SetBool(const std::string& name, const LogValue& value, bool* setting) {
  if (!value.has_bool_param()) {
    return InvalidField(FieldOf(name), "is no bool; expected true or false");
  }
  *setting = value.bool_param();
  return absl::OkStatus();
}

absl::Status SetOnly(const std::string& name, const LogValue& value, const std::string& only) {
  if (!value.has_string_param()) {
    return InvalidField(FieldOf(name), absl::StrCat("is no string; expected '", only, "'"));
  }
  if (value.string_param() != only) {
    return absl::UnimplementedError(absl::StrCat(FieldOf(name), ": '",
                                                 Excerpt(value.string_param()),
                                                 "' is not offered; expected '", only, "'"));
  }
  return absl::OkStatus();
}

absl::Status Apply(const std::string& name, const LogValue& value, LogLevels* levels) {
  if (name == "log_error") {
    return SetBool(name, value, &levels->error);
  }
  if (name == "log_warning") {
    return SetBool(name, value, &levels->warning);
  }
  if (name == "log_info") {
    return SetBool(name, value, &levels->info);
  }
  if (name == "log_verbose_level") {
    if (!value.has_uint32_param()) {
      return InvalidField(FieldOf(name), "is no uint32; expected 0, 1 or 2");
    }
    levels->verbose = value.uint32_param();
    return absl::OkStatus();
  }
  if (name == "log_format") {
    return SetOnly(name, value, kLogFormat);
  }
  if (name == "log_file") {
    return SetOnly(name, value, "");
  }
  return absl::UnimplementedError(
      absl::StrCat(FieldOf(name),
                   ": is no setting of this server's log; it has log_error, "
                   "log_warning, log_info, log_verbose_level and log_format"));
}

}  // namespace

absl::Status ExchangeLogSettings(const inference::LogSettingsRequest& request,
                                 inference::LogSettingsResponse* response) {
  LogLevels levels = CurrentLevels();
  for (const auto& [name, value] : request.settings()) {
    BRAID_RETURN_IF_ERROR(Apply(name, value, &levels));
  }
  if (!request.settings().empty()) {
    if (levels.error < levels.warning || levels.warning < levels.info ||
        levels.info < (levels.verbose > 0)) {
      return InvalidField("settings",
                          "ask for messages without more important ones; expected log_error, "
                          "log_warning, log_info and log_verbose_level each with those before it");
    }
    if (spdlog::get_level() != LevelOf(levels)) {
      spdlog::set_level(LevelOf(levels));
    }
  }
  levels = CurrentLevels();
  auto& settings = *response->mutable_settings();
  settings["log_file"].set_string_param("");
  settings["log_info"].set_bool_param(levels.info);
  settings["log_warning"].set_bool_param(levels.warning);
  settings["log_error"].set_bool_param(levels.error);
  settings["log_verbose_level"].set_uint32_param(levels.verbose);
  settings["log_format"].set_string_param(kLogFormat);
  return absl::OkStatus();
}

absl::Status ExchangeTraceSettings(const inference::TraceSettingRequest& request,
                                   inference::TraceSettingResponse* response) {
  constexpr char kLevel[] = "trace_level";
  constexpr char kOff[] = "OFF";
  for (const auto& [name, value] : request.settings()) {
    const bool off = name == kLevel && value.value_size() == 1 && value.value(0) == kOff;
    // Nothing at all: back to what the server was started with, which is off.
    if (!off && value.value_size() > 0) {
      return absl::UnimplementedError(absl::StrCat(
          FieldOf(name), ": this server does not trace requests; expected nothing but ", kLevel,
          ": ", kOff));
    }
  }
  (*response->mutable_settings())[kLevel].add_value(kOff);
  return absl::OkStatus();
}

}  // namespace braid
