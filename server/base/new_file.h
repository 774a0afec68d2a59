// File to be written.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/base/byte_sink.h"

namespace braid {

// `write` writes the contents to the sink.
struct NewFile {
  std::string name;
  std::function<absl::Status(ByteSink*)> write;
};

}  // namespace braid
