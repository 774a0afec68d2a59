// A model repository in Triton's layout: <model>/config.pbtxt and <model>/<version>/model.pt.
//
// Symbolic links are followed wherever they lead: whoever may write to the repository may run
// anything as the server, for models are code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace braid {

// A folder of the repository, as it was found.
struct RepositoryEntry {
  struct Version {
    int64_t version = 0;
    std::string folder;
  };
  std::string name;
  std::string folder;
  // Empty: there is none.
  std::string config_path;
  // Ascending. Folders that are called otherwise than a number from 1 are passed over.
  std::vector<Version> versions;
};

// The models in `directory`, by name. NOT_FOUND if it is no readable directory. Names of files and
// folders that begin with a '.' are passed over.
absl::StatusOr<std::vector<RepositoryEntry>> ScanRepository(const std::string& directory);

// The model `name` of the repository. INVALID_ARGUMENT if it is no folder's name, NOT_FOUND if
// there is none of that name.
absl::StatusOr<RepositoryEntry> ScanModel(const std::string& directory, const std::string& name);

// The model's file in a version's folder: `filename`, or model.pt, or else model.pt2, if that is
// empty. NOT_FOUND if it is not there.
absl::StatusOr<std::string> FindModelFile(const RepositoryEntry::Version& version,
                                          const std::string& filename);

// `path`, a model's file, and, where there are any, the weights that lie beside it.
std::vector<std::string> ModelFiles(const std::string& path);

// Changes whenever a file of the model is added, removed or written: names, sizes and times of
// change of what is in its folder.
std::string ModelFingerprint(const RepositoryEntry& entry);

}  // namespace braid
