// State of data that is written to disk in the background.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace braid {

enum class Durability {
  kNone,        // the server has no data directory
  kPending,     // waits to be written, or is being written
  kDurable,     // on disk
  kSuperseded,  // replaced before it was written; is not written
  kFailed,      // could not be written
};

// Returns "none", "pending", "durable", "superseded" or "failed".
constexpr absl::string_view NameOf(Durability durability) {
  switch (durability) {
    case Durability::kNone:
      return "none";
    case Durability::kPending:
      return "pending";
    case Durability::kDurable:
      return "durable";
    case Durability::kSuperseded:
      return "superseded";
    case Durability::kFailed:
      return "failed";
  }
  return "";
}

struct DurabilityState {
  Durability durability = Durability::kNone;
  std::string reason;  // kSuperseded, kFailed: why
};

}  // namespace braid
