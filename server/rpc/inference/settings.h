// The settings that clients may read, and some change, while the server runs: its log's and
// tracing's.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"

namespace braid {

// Applies the settings of `request` to the server's log, all or none, and fills in what holds then.
// A module of the log has one level, so of log_error, log_warning, log_info and log_verbose_level
// (0, 1, 2 and more), which are of all modules but the access log, each asks for those before it.
// log_level, a setting of Braid's own, is what --log_level is. UNIMPLEMENTED or INVALID_ARGUMENT,
// naming the setting, for another combination, another log_format than ISO8601, a log_file, and for
// what is no setting.
absl::Status ExchangeLogSettings(const inference::LogSettingsRequest& request,
                                 inference::LogSettingsResponse* response);

// Requests are not traced: says so, and refuses every setting but trace_level OFF, by name.
absl::Status ExchangeTraceSettings(const inference::TraceSettingRequest& request,
                                   inference::TraceSettingResponse* response);

// The settings that a request wants changed, for the audit: "log_info=false log_level=info",
// sorted.
std::string SettingsText(const inference::LogSettingsRequest& request);
std::string SettingsText(const inference::TraceSettingRequest& request);

}  // namespace braid
