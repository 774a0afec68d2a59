// Log and trace settings that clients may read and change at run time.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"

namespace braid {

// Applies log settings, all or none, and fills in the resulting ones. log_error, log_warning,
// log_info and log_verbose_level (0, 1, or 2 and more) set the level of all modules except the
// access log; each requires the ones before it. log_level is Braid's own setting and has the syntax
// of --log_level. UNIMPLEMENTED or INVALID_ARGUMENT, naming the setting, for other combinations, a
// log_format other than ISO8601, a log_file, and unknown settings.
absl::Status ExchangeLogSettings(const inference::LogSettingsRequest& request,
                                 inference::LogSettingsResponse* response);

// Fills in trace_level OFF: tracing is not supported. UNIMPLEMENTED, naming the setting, for any
// other value.
absl::Status ExchangeTraceSettings(const inference::TraceSettingRequest& request,
                                   inference::TraceSettingResponse* response);

// Formats the settings in a request, sorted, for the audit: "log_info=false log_level=info".
std::string SettingsText(const inference::LogSettingsRequest& request);
std::string SettingsText(const inference::TraceSettingRequest& request);

}  // namespace braid
