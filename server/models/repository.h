// A model repository in Triton's layout: <model>/config.pbtxt and <model>/<version>/model.pt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

// A folder of the repository, as it was found.
struct RepositoryEntry {
  std::string name;
  // The newest version and its file. Older ones are left alone, as in Triton's default policy.
  int64_t version = 0;
  std::string model_path;
  // Empty: there is none.
  std::string config_path;
  // Why it cannot be loaded, if so.
  absl::Status status;
};

// The models in `directory`, by name. NOT_FOUND if it is no readable directory. Names of files and
// folders that begin with a '.' are passed over.
absl::StatusOr<std::vector<RepositoryEntry>> ScanRepository(const std::string& directory);

}  // namespace braid
