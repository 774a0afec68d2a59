// Choices about the versions of models that survive a restart.
//
//   <data_dir>/serving.json   {"<model>": {"version": 3, "newest": 5, "labels": {"stable": 2},
//                                          "used": 7, "reserved": [{"version": 7, ...}]}}
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace braid {

// Number of a version that a trainer published, which a retry of the operation gets again.
struct ReservedVersion {
  int64_t version = 0;
  // See VersionOrigin.
  std::string trainer_id = {};
  std::string last_operator = {};
  int64_t sequence = 0;
  std::string history = {};

  friend bool operator==(const ReservedVersion& a, const ReservedVersion& b) = default;
};

// Choices about one model.
struct VersionChoices {
  // Version for requests without a version. 0: the newest.
  int64_t pinned = 0;
  // Newest version in the data directory that does not end the pin.
  int64_t newest = 0;
  std::map<std::string, int64_t> labels = {};
  // Highest number that was assigned and need not have a version.
  int64_t used = 0;
  // Published versions without files, by number: they were not written yet, or never.
  std::vector<ReservedVersion> reserved = {};

  friend bool operator==(const VersionChoices& a, const VersionChoices& b) = default;
};

// Thread-safe.
class VersionChoicesFile {
 public:
  // `path`: empty keeps the choices in memory. DATA_LOSS if the file is damaged.
  static absl::StatusOr<std::unique_ptr<VersionChoicesFile>> Open(std::string path);

  VersionChoices Read(absl::string_view model) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns once the choices are durable. On error, the previous choices stay.
  absl::Status Write(const std::string& model, const VersionChoices& choices)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using ByModel = std::map<std::string, VersionChoices, std::less<>>;

  VersionChoicesFile(std::string path, ByModel models)
      : path_(std::move(path)), models_(std::move(models)) {}

  const std::string path_;
  mutable absl::Mutex mu_;
  ByModel models_ ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
