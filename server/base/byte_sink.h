// Interface for sequential output.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace braid {

class ByteSink {
 public:
  virtual ~ByteSink() = default;

  // Writes all of `bytes`. Must not be called again after an error.
  virtual absl::Status Write(absl::string_view bytes) = 0;
};

}  // namespace braid
