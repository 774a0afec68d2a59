// A file that is to be written.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/base/byte_sink.h"

namespace braid {

// `write` gives its bytes to the sink.
struct NewFile {
  std::string name;
  std::function<absl::Status(ByteSink*)> write;
};

}  // namespace braid
