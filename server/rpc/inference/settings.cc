#include "server/rpc/inference/settings.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

using LogValue = inference::LogSettingsRequest::SettingValue;

constexpr char kLogFormat[] = "ISO8601";
constexpr char kLogLevel[] = "log_level";

// Triton's settings. Each requires the ones before it.
struct Verbosity {
  bool error = true;
  bool warning = true;
  bool info = true;
  uint32_t verbose = 0;
};

Verbosity VerbosityOf(const LogLevels& levels) {
  const spdlog::level::level_enum level = levels[static_cast<size_t>(LogModule::kServer)];
  Verbosity verbosity;
  verbosity.error = level <= spdlog::level::err;
  verbosity.warning = level <= spdlog::level::warn;
  verbosity.info = level <= spdlog::level::info;
  verbosity.verbose = level <= spdlog::level::trace ? 2 : level <= spdlog::level::debug ? 1 : 0;
  return verbosity;
}

const char* LevelOf(const Verbosity& verbosity) {
  if (verbosity.verbose > 0) {
    return verbosity.verbose > 1 ? "trace" : "debug";
  }
  return verbosity.info      ? "info"
         : verbosity.warning ? "warning"
         : verbosity.error   ? "error"
                             : "off";
}

std::string FieldOf(const std::string& name) { return absl::StrCat("settings.", Excerpt(name)); }

absl::Status SetBool(const std::string& name, const LogValue& value, bool* setting) {
  if (!value.has_bool_param()) {
    return InvalidField(FieldOf(name), "not a bool (expected true or false)");
  }
  *setting = value.bool_param();
  return absl::OkStatus();
}

absl::Status SetOnly(const std::string& name, const LogValue& value, const std::string& only) {
  if (!value.has_string_param()) {
    return InvalidField(FieldOf(name), absl::StrCat("not a string (expected '", only, "')"));
  }
  if (value.string_param() != only) {
    return absl::UnimplementedError(absl::StrCat(FieldOf(name), ": '",
                                                 Excerpt(value.string_param()),
                                                 "' is not supported (expected '", only, "')"));
  }
  return absl::OkStatus();
}

absl::Status Apply(const std::string& name, const LogValue& value, Verbosity* verbosity) {
  if (name == "log_error") {
    return SetBool(name, value, &verbosity->error);
  }
  if (name == "log_warning") {
    return SetBool(name, value, &verbosity->warning);
  }
  if (name == "log_info") {
    return SetBool(name, value, &verbosity->info);
  }
  if (name == "log_verbose_level") {
    if (!value.has_uint32_param()) {
      return InvalidField(FieldOf(name), "not a uint32 (expected 0, 1 or 2)");
    }
    verbosity->verbose = value.uint32_param();
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
                   ": unknown log setting (expected log_error, log_warning, log_info, "
                   "log_verbose_level, log_level or log_format)"));
}

// Parses the log_level setting.
absl::StatusOr<LogLevels> ParseLevels(const LogValue& value, const LogLevels& levels) {
  const std::string field = FieldOf(kLogLevel);
  if (!value.has_string_param()) {
    return InvalidField(field, "not a string (expected, for example, 'info,training=debug')");
  }
  absl::StatusOr<LogLevels> parsed = ParseLogLevels(value.string_param(), levels);
  return parsed.ok() ? parsed : InvalidField(field, parsed.status().message());
}

std::string ValueText(const LogValue& value) {
  switch (value.parameter_choice_case()) {
    case LogValue::kBoolParam:
      return value.bool_param() ? "true" : "false";
    case LogValue::kUint32Param:
      return absl::StrCat(value.uint32_param());
    case LogValue::kStringParam:
      return value.string_param();
    case LogValue::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return "";
}

std::string ValueText(const inference::TraceSettingRequest::SettingValue& value) {
  return absl::StrJoin(value.value(), ",");
}

template <typename Request>
std::string TextOf(const Request& request) {
  std::vector<std::string> settings;
  for (const auto& [name, value] : request.settings()) {
    settings.push_back(absl::StrCat(Excerpt(name), "=", Excerpt(ValueText(value))));
  }
  std::sort(settings.begin(), settings.end());
  return absl::StrJoin(settings, " ");
}

}  // namespace

std::string SettingsText(const inference::LogSettingsRequest& request) { return TextOf(request); }
std::string SettingsText(const inference::TraceSettingRequest& request) { return TextOf(request); }

absl::Status ExchangeLogSettings(const inference::LogSettingsRequest& request,
                                 inference::LogSettingsResponse* response) {
  LogLevels levels = GetLogLevels();
  Verbosity verbosity = VerbosityOf(levels);
  bool all_modules = false;
  for (const auto& [name, value] : request.settings()) {
    if (name != kLogLevel) {
      BRAID_RETURN_IF_ERROR(Apply(name, value, &verbosity));
      all_modules = true;
    }
  }
  if (all_modules) {
    if (verbosity.error < verbosity.warning || verbosity.warning < verbosity.info ||
        verbosity.info < (verbosity.verbose > 0)) {
      return InvalidField("settings",
                          "enable a level without the more important ones (log_error, log_warning, "
                          "log_info and log_verbose_level each require those before them)");
    }
    BRAID_ASSIGN_OR_RETURN(levels, ParseLogLevels(LevelOf(verbosity), levels));
  }
  if (const auto found = request.settings().find(kLogLevel); found != request.settings().end()) {
    BRAID_ASSIGN_OR_RETURN(levels, ParseLevels(found->second, levels));
  }
  SetLogLevels(levels);
  verbosity = VerbosityOf(levels);
  auto& settings = *response->mutable_settings();
  settings["log_file"].set_string_param("");
  settings["log_info"].set_bool_param(verbosity.info);
  settings["log_warning"].set_bool_param(verbosity.warning);
  settings["log_error"].set_bool_param(verbosity.error);
  settings["log_verbose_level"].set_uint32_param(verbosity.verbose);
  settings[kLogLevel].set_string_param(LogLevelsText(levels));
  settings["log_format"].set_string_param(kLogFormat);
  return absl::OkStatus();
}

absl::Status ExchangeTraceSettings(const inference::TraceSettingRequest& request,
                                   inference::TraceSettingResponse* response) {
  constexpr char kLevel[] = "trace_level";
  constexpr char kOff[] = "OFF";
  for (const auto& [name, value] : request.settings()) {
    const bool off = name == kLevel && value.value_size() == 1 && value.value(0) == kOff;
    // An empty value resets the setting to its start value, which is OFF.
    if (!off && value.value_size() > 0) {
      return absl::UnimplementedError(absl::StrCat(
          FieldOf(name), ": tracing is not supported (expected only ", kLevel, ": ", kOff, ")"));
    }
  }
  (*response->mutable_settings())[kLevel].add_value(kOff);
  return absl::OkStatus();
}

}  // namespace braid
