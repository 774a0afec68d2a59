// Versions of a model, as users see them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/base/durability.h"

namespace braid {

struct VersionInfo {
  enum class Origin { kUnknown, kExported, kPublished, kUploaded };
  enum class State {
    kReady,
    kIdle,         // on disk, not loaded
    kUnavailable,  // failed to load, was unloaded, or has no files
    kIgnored,      // folder in the repository that a version of the data directory hides
  };
  int64_t version = 0;
  Origin origin = Origin::kExported;
  std::string trainer;  // kPublished
  int64_t step = 0;     // kPublished
  State state = State::kIdle;
  // kUnavailable, kIgnored: why. kReady: why the last load failed; empty if it succeeded.
  std::string reason;
  // Requests without a version get it.
  bool serving = false;
  bool pinned = false;
  std::vector<std::string> labels;  // sorted
  // InfinitePast: unknown.
  absl::Time created = absl::InfinitePast();
  DurabilityState durability = {Durability::kDurable, ""};
};

// A version that a trainer published.
struct PublishedVersion {
  int64_t version = 0;
  DurabilityState durability;
};

// Change of the version for requests without a version.
struct VersionChange {
  int64_t previous = 0;
  // True if the new version is pinned.
  bool pinned = false;
};

struct UploadedVersion {
  int64_t version = 0;
  // Requests without a version get it.
  bool serving = false;
};

}  // namespace braid
