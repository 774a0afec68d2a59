// Files of the status page, which are compiled into the server. Their sources are in
// server/telemetry/status_page/.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace braid {

struct StatusPageFile {
  absl::string_view path;  // in the URL
  absl::string_view content_type;
  absl::string_view content;
};

absl::Span<const StatusPageFile> StatusPageFiles();

}  // namespace braid
