// Where bytes go, one after the other.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

class ByteSink {
 public:
  virtual ~ByteSink() = default;

  // Takes all of `bytes`, or fails; nothing is to be written after a failure.
  virtual absl::Status Write(absl::string_view bytes) = 0;
};

}  // namespace braid
